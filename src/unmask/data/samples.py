"""Batches of labelled samples, by number: the same places, blocks and batches as a stream of shards has, of what fits into memory.

An epoch is one block: every sample once, in an order that follows from (seed, epoch), so many to a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from unmask.data.batch import Batch
from unmask.data.keys import key, permuted
from unmask.data.stream import Place
from unmask.errors import UserError
from unmask.model.layout import Packed

Numbers = np.ndarray[Any, np.dtype[Any]]
BEGIN = Place()


@dataclass(frozen=True)
class Sample:
    """One or more sequences that are answered together, and what should be answered: for each term an array of labels."""

    sequences: tuple[Numbers, ...]  # ids, the special ones included
    segments: tuple[Numbers, ...]
    labels: Mapping[str, Numbers] = field(default_factory=dict)
    rows: Mapping[str, Numbers] = field(default_factory=dict)  # of a term whose labels are tokens': which tokens, counted from the sample's first


class Samples:
    """`size` samples a batch, longer ones first, so that a CPU finds neighbours of one length; `multiple` fills a batch up to such a number of tokens."""

    def __init__(self, samples: Sequence[Sample], size: int, *, seed: int = 0, fixed: bool = False, multiple: int = 1, segments: bool = True) -> None:
        if not samples:
            raise UserError("there are no examples to learn from; give a file that holds some")
        self.samples, self.size, self.seed, self.fixed, self.multiple, self.segments = samples, size, seed, fixed, multiple, segments
        self.blocks = 1
        self.lengths = np.array([sum(map(len, one.sequences)) for one in samples])

    def passing(self) -> tuple[float, float]:
        """The tokens of a batch and of an epoch."""
        total = float(self.lengths.sum())
        return total / -(-len(self.samples) // self.size), total

    def walk(self, place: Place = BEGIN) -> Iterator[tuple[Place, Block, int]]:
        """Every batch from that place on, not yet made: the place after it, its block, and its number there."""
        while True:
            block = Block(self, place.epoch)
            for number in range(place.batch, len(block.batches)):
                yield Place(place.epoch, 0, number + 1) if number + 1 < len(block.batches) else Place(place.epoch + 1), block, number
            place = Place(place.epoch + 1)


@dataclass(frozen=True)
class Block:
    stream: Samples
    epoch: int

    @property
    def lengths(self) -> Numbers:
        return np.array([len(one) for sample in self.stream.samples for one in sample.sequences])

    @cached_property
    def batches(self) -> list[Numbers]:
        count = len(self.stream.samples)
        order = np.arange(count) if self.stream.fixed else permuted(np.arange(count), count, key(self.stream.seed, "order", self.epoch))
        return np.split(order, range(self.stream.size, count, self.stream.size))

    def tokens(self, number: int) -> int:
        return int(self.stream.lengths[self.batches[number]].sum())

    def make(self, number: int, share: float = 0.0) -> Batch:
        chosen = self.batches[number]
        chosen = chosen[np.argsort(-self.stream.lengths[chosen], kind="stable")]
        return collated([self.stream.samples[i] for i in chosen], chosen, self.stream.multiple, segments=self.stream.segments)


def collated(samples: Sequence[Sample], numbers: Numbers, multiple: int = 1, *, segments: bool = True) -> Batch:
    """Sequences end to end; what fills them up is a last sequence that nobody reads."""
    lengths = [len(one) for sample in samples for one in sample.sequences]
    tail = -sum(lengths) % multiple
    lengths += [tail] if tail else []
    filler = [np.zeros(tail, np.int64)] if tail else []
    inputs = {"tokens": np.concatenate([*(one for sample in samples for one in sample.sequences), *filler])}
    inputs["positions"] = np.concatenate([np.arange(length) for length in lengths])
    inputs["positions"][len(inputs["positions"]) - tail :] = 0  # it may be longer than the model has positions
    if segments and any(one.any() for sample in samples for one in sample.segments):
        inputs["segments"] = np.concatenate([*(one for sample in samples for one in sample.segments), *filler])
    targets: dict[str, Numbers] = {}
    starts = np.cumsum([0, *(sum(map(len, sample.sequences)) for sample in samples)])
    for term in samples[0].labels:
        targets[f"{term}.labels"] = np.concatenate([sample.labels[term] for sample in samples])
        if term in samples[0].rows:
            targets[f"{term}.rows"] = np.concatenate([sample.rows[term] + start for sample, start in zip(samples, starts, strict=False)])
    return Batch(
        {name: torch.from_numpy(np.ascontiguousarray(one, np.int64)) for name, one in inputs.items()},
        Packed.of(lengths),
        {name: torch.from_numpy(one) for name, one in targets.items()},
        torch.from_numpy(np.asarray(numbers, np.int64)),
    )
