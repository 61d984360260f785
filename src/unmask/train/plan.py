"""`unmask plan`: a few steps measured here, and what the whole run will take: time, memory, tokens, disk; or which size of a batch fits."""

from __future__ import annotations

import gc
import resource
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from unmask.config import Duration
from unmask.errors import UserError
from unmask.model.model import parameters
from unmask.train import loop
from unmask.train.distribute import Group
from unmask.train.feed import Begin
from unmask.train.prepared import Prepared
from unmask.train.run import Run
from unmask.train.schedule import staged

LEAST = 3  # steps that are measured


@dataclass(frozen=True)
class Plan:
    parameters: int
    tokens_per_step: int
    speed: float  # tokens a second
    used: float  # of what a matrix product reaches here
    memory: int  # bytes, at the most
    steps: float
    tokens: float
    epochs: float
    seconds: float
    disk: int  # bytes of the checkpoints that are kept
    parts: tuple[int, int]  # micro-batches of a step, and how many of them go together

    def lines(self) -> Iterator[tuple[str, str]]:
        yield "parameters", f"{self.parameters:,}"
        yield "a step", f"{self.tokens_per_step:,} tokens in {self.parts[0]} micro-batches, {self.parts[1]} at once"
        yield "speed", f"{self.speed:,.0f} tokens/s, {self.used:.0%} of what a matrix product reaches here"
        yield "memory", f"{self.memory / 1e9:,.1f} GB at the most"
        yield "the run", f"{self.steps:,.0f} steps, {self.tokens:,.0f} tokens, {self.epochs:,.2f} times through the text"
        yield "time", said(self.seconds)
        yield "disk", f"{self.disk / 1e9:,.2f} GB for checkpoints"


def plan(run: Run, group: Group, seconds: float = 10.0) -> Plan:
    """Measured where the run begins; what changes on its way (longer sequences, larger steps) is not foreseen, but for the size of steps."""
    ready = Prepared(run, Path(), group)
    feed = ready.feed(Duration.of("1000000"), Begin(), {})
    if group.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(group.device)
    tokens, count, start, steps = 0, 0, 0.0, iter(feed)
    try:
        while count <= LEAST or time.perf_counter() - start < seconds:
            step = next(steps)
            _, norms, _ = loop._step(ready, step)
            float(norms[0])  # waits for the device
            count += 1
            if count == 1:  # the first one warms up
                start = time.perf_counter()
            else:
                tokens += step.tokens
        speed = tokens / (time.perf_counter() - start)
    finally:
        feed.close()
    stop, part = Duration.of(run.stop), staged(run.data.step, 0.0)
    batch, epoch = _passing(ready)
    mean = batch * _mean_size(run, stop.unit)
    total = {"steps": stop.amount * mean, "tokens": stop.amount, "seconds": stop.amount * speed}.get(stop.unit, stop.amount * epoch)
    size = 4 * parameters(ready.learner)
    return Plan(
        parameters=parameters(ready.loaded.model),
        tokens_per_step=round(batch * part),
        speed=speed,
        used=speed * ready.flops / ready.limit,
        memory=_memory(group),
        steps=total / mean,
        tokens=total,
        epochs=total / epoch,
        seconds=total / speed,
        disk=size * ((2 if run.optimizer.name == "muon" else 3) + bool(run.ema)) * (run.keep + bool(ready.held)),
        parts=(part, min(run.together, part)),
    )


def largest(run: Run, group: Group) -> int:
    """The largest micro-batch, in halves of the run's, with which a step fits into memory; 0 where none does."""
    longest = max(value for _, value in run.data.longest)
    tokens = run.data.tokens // (1 if run.together > 1 else 2)
    while tokens >= longest:
        smaller = replace(run, data=replace(run.data, tokens=tokens), together=1)
        try:
            plan(smaller, group, seconds=0.0)
            return tokens
        except torch.OutOfMemoryError:
            _let_go(group)
            tokens //= 2
    return 0


def too_large(run: Run, group: Group) -> UserError:
    """What to say of a batch that does not fit."""
    _let_go(group)
    found = largest(run, group)
    if not found:
        return UserError("not even one sequence fits into memory; choose a smaller model, or shorter sequences with --data.longest")
    size = staged(run.data.step, 0.0) * run.data.tokens // found
    was = f"micro-batches of {run.data.tokens:,} tokens{f', {run.together} at once,' if run.together > 1 else ''} do not fit into memory"
    return UserError(f"{was}; {found:,} do: say --data.tokens {found} --data.step '[[0, {size}]]' --together 1, which makes steps of the same size")


def said(seconds: float) -> str:
    """For people."""
    for size, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {name}"
    return f"{seconds:,.0f} seconds"


def _mean_size(run: Run, unit: str) -> float:
    """Micro-batches of a step, on average over its steps; where the run is not counted by steps, larger ones are fewer."""
    ends = [begin for begin, _ in run.data.step[1:]] + [1.0]
    spans = [(end - begin, size) for (begin, size), end in zip(run.data.step, ends, strict=True)]
    return sum(span * size for span, size in spans) if unit == "steps" else 1 / sum(span / size for span, size in spans)


def _passing(ready: Prepared) -> tuple[float, float]:
    """The tokens of a micro-batch, which is not quite full, and of an epoch, which are more than the text's: special pieces, wrong sentences."""
    stream = ready.stream(0.0)
    block = stream.block(0, 0)
    read = float(block.sequences.lengths.sum())
    shares = [1.0] if len(stream.corpora) == 1 else [each * stream.blocks / len(one) for each, one in zip(stream.each, stream.corpora, strict=True)]
    text = sum(share * one.tokens for share, one in zip(shares, stream.corpora, strict=True))
    return read / len(block.batches), text * read / len(block.documents.tokens)


def _let_go(group: Group) -> None:
    """What did not fit is still held by the frames of the error that is being handled."""
    error = sys.exception()
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
    gc.collect()
    if group.device.type == "cuda":
        torch.cuda.empty_cache()


def _memory(group: Group) -> int:
    if group.device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(group.device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
