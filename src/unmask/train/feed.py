"""Steps of a run: the micro-batches of each, made in a thread while the step before is computed.

What is in a step follows from its number, the place in the stream and the share of the run that has passed. By steps, tokens and epochs
that share is known ahead; by wall-clock it is what the loop measured some steps before, the same number on every rank, and kept in
the log, so that a run that is resumed makes again what it made.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Queue

import torch
from torch import Tensor

from unmask.config import Clock, Duration
from unmask.data.batch import Batch
from unmask.data.stream import IGNORED, Numbered, Part, Place
from unmask.model.layout import Packed, Padded
from unmask.objectives.base import counts
from unmask.train.schedule import staged

AHEAD = 3  # steps that are made before they are asked for


@dataclass(frozen=True)
class Step:
    number: int  # from 0
    clock: Clock  # when it begins
    parts: list[tuple[int, Batch]]  # this rank's micro-batches, so many together, by the number of the first in the step
    counts: dict[str, int]  # this rank's labels of each term
    tokens: int  # of all ranks, real ones
    after: Place
    block_share: float
    epochs: float = 0.0  # when it ends


@dataclass(frozen=True)
class Begin:
    """Where a run goes on: the next batch, the clock, and what the clock's share was when that batch's block began."""

    place: Place = field(default_factory=Place)
    clock: Clock = field(default_factory=Clock)
    block_share: float = 0.0


class Feed:
    """`streams` gives the stream that counts at a share of the run; they differ in how long sequences are."""

    def __init__(
        self,
        streams: Callable[[float], Numbered],
        stages: Sequence[tuple[float, int]],
        stop: Duration,
        begin: Begin,
        *,
        rank: int = 0,
        ranks: int = 1,
        together: int = 1,
        finish: Callable[[Batch], Batch] = lambda batch: batch,
        known: Mapping[int, float] | None = None,
        even: bool = False,
    ) -> None:
        self.streams, self.stages, self.stop, self.begin, self.rank, self.ranks = streams, stages, stop, begin, rank, ranks
        self.together, self.finish = together, finish
        self.even = even  # whether all ranks go through the model equally often, as FSDP2 needs: it is not there but with all of them
        self.share, self.block_share = begin.clock.share, begin.block_share
        self.seconds = dict(known or {})  # when each step ended, as the loop tells, or the log of an earlier run
        self.told = threading.Condition()
        self.queue: Queue[Step | BaseException | None] = Queue(AHEAD)
        self.closed = False
        self.thread = threading.Thread(target=self._work, daemon=True)

    def __iter__(self) -> Iterator[Step]:
        self.thread.start()
        while (found := self.queue.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found

    def tell(self, step: int, seconds: float) -> float:
        """The loop says when a step ended; what was known of it already counts."""
        with self.told:
            seconds = self.seconds.setdefault(step, seconds)
            self.told.notify_all()
        return seconds

    def close(self) -> None:
        self.closed = True
        with self.told:
            self.told.notify_all()
        while self.thread.is_alive():
            while not self.queue.empty():
                self.queue.get_nowait()
            self.thread.join(0.01)
        # Python calls it ended when its last line is; torch clears away after that, and aborts the process if Python itself ends meanwhile.
        left = Path(f"/proc/self/task/{self.thread.native_id}")
        while left.exists():
            time.sleep(0.001)

    # ---- in the thread

    def _work(self) -> None:
        try:
            for step in self._steps():
                self.queue.put(step)
                if self.closed:
                    return
            self.queue.put(None)
        except BaseException as error:
            self.queue.put(error)

    def _steps(self) -> Iterator[Step]:
        clock, walk = self.begin.clock, self._walk()
        while True:
            clock = self._timed(clock)
            self.share = clock.share
            if clock.share >= 1 or self.closed:
                return
            parts, tokens, number = [], 0, staged(self.stages, clock.share)
            for part in range(number):
                after, block, index = next(walk)
                tokens += block.tokens(index)
                if part % self.ranks == self.rank:
                    parts.append((part, block.make(index, clock.share)))
            labels = [counts(batch) for _, batch in parts]
            total = {term: sum(one.get(term, 0) for one in labels) for term in sorted({term for one in labels for term in one})}
            sent = [(first, self.finish(batch)) for first, batch in _grouped(parts, self.together)]
            while self.even and len(sent) < -(-number // (self.ranks * self.together)):
                sent.append((number, unasked(sent[-1][1])))
            passed = after.batch / len(block.batches)
            epochs = after.epoch + (after.block + passed) / block.stream.blocks
            yield Step(int(clock.steps), clock, sent, total, tokens, after, self.block_share, epochs)
            clock = replace(clock, steps=clock.steps + 1, tokens=clock.tokens + tokens, epochs=epochs)

    def _walk(self) -> Iterator[tuple[Place, Part, int]]:
        """How long sequences are is decided where a block begins, and counts to its end."""
        place = self.begin.place
        while True:
            if place.batch == 0:
                self.block_share = self.share
            for after, block, index in self.streams(self.block_share).walk(place):
                yield after, block, index
                place = after
                if after.batch == 0:
                    break

    def _timed(self, clock: Clock) -> Clock:
        seen = int(clock.steps) - AHEAD - 1
        if self.stop.unit == "seconds" and seen < 0:
            clock = replace(clock, seconds=0.0)  # nobody knew more when these were first made, wherever this run goes on
        elif self.stop.unit == "seconds" and (seen in self.seconds or seen >= self.begin.clock.steps):
            with self.told:
                self.told.wait_for(lambda: self.closed or seen in self.seconds)
                clock = replace(clock, seconds=self.seconds.get(seen, clock.seconds))
        return replace(clock, share=self.stop.passed(clock))


def _grouped(parts: Sequence[tuple[int, Batch]], size: int) -> Iterator[tuple[int, Batch]]:
    """So many micro-batches as one; the number is the first one's."""
    for start in range(0, len(parts), size):
        some = parts[start : start + size]
        yield some[0][0], joined([batch for _, batch in some]) if len(some) > 1 else some[0][1]


def unasked(batch: Batch) -> Batch:
    """The same tokens, and nothing asked of them: every loss is zero."""
    return replace(batch, targets={name: torch.full_like(one, IGNORED) if name.endswith(".labels") else one for name, one in batch.targets.items()})


def padded(batch: Batch, longest: int) -> Batch:
    """The same sequences in rows of one length, for what no packed kernel does, such as dropout in attention."""
    assert isinstance(batch.layout, Packed)
    lengths = batch.layout.lengths
    mask = torch.arange(longest)[None, :] < lengths[:, None]

    def laid(values: Tensor) -> Tensor:
        found = values.new_zeros(mask.shape)
        found[mask] = values
        return found

    layout = Padded(len(lengths), longest, None if bool(mask.all()) else mask)
    return replace(batch, inputs={name: laid(one) for name, one in batch.inputs.items()}, layout=layout)


def joined(batches: Sequence[Batch]) -> Batch:
    """Several packed batches as one; what is asked of each is asked of the whole."""
    sizes = [len(batch.inputs["tokens"]) for batch in batches]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    inputs = {name: torch.cat([batch.inputs[name] for batch in batches]) for name in batches[0].inputs}
    lengths = [length for batch in batches for length in batch.layout.lengths.tolist()]
    targets = {
        name: torch.cat([batch.targets[name] + (start if name.endswith(".rows") else 0) for batch, start in zip(batches, starts, strict=True)])
        for name in batches[0].targets
    }
    ids = [batch.ids for batch in batches if batch.ids is not None]
    return Batch(inputs, Packed.of(lengths), targets, torch.cat(ids) if ids else None)
