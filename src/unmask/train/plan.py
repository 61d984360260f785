"""`unmask plan`: a few steps of each length measured here, and what the whole run will take: time, memory, tokens, disk; or which size of a batch fits."""

from __future__ import annotations

import gc
import itertools
import resource
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from unmask.config import Clock, Duration
from unmask.data.stream import Place
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


@dataclass(frozen=True)
class Stage:
    """How it goes while sequences are of one length."""

    speed: float  # tokens a second
    batch: float  # the tokens of a micro-batch, which is not quite full
    epoch: float  # those of an epoch, which are more than the text's: special pieces, wrong sentences


def plan(run: Run, group: Group, seconds: float = 10.0) -> Plan:
    """Measured for about so many seconds. What it takes to evaluate and to save is not in it."""
    ready, stop = Prepared(run, Path(), group), Duration.of(run.stop)
    if group.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(group.device)
    stages: dict[int, Stage] = {}
    for begin, longest in run.data.longest:  # a comprehension would hold what did not fit in a closure of its own
        stages[longest] = _stage(ready, begin, seconds / len(run.data.longest))
    steps = tokens = epochs = time = 0.0
    for span, size, longest in _pieces(run):
        stage, amount = stages[longest], stop.amount * span
        read = {"steps": amount * size * stage.batch, "tokens": amount, "seconds": amount * stage.speed}.get(stop.unit, amount * stage.epoch)
        steps, tokens, epochs, time = steps + read / size / stage.batch, tokens + read, epochs + read / stage.epoch, time + read / stage.speed
    first, part = stages[staged(run.data.longest, 0.0)], staged(run.data.step, 0.0)
    return Plan(
        parameters=parameters(ready.loaded.model),
        tokens_per_step=round(first.batch * part),
        speed=tokens / time,
        used=tokens / time * ready.flops / ready.limit,
        memory=_memory(group),
        steps=steps,
        tokens=tokens,
        epochs=epochs,
        seconds=time,
        disk=4 * parameters(ready.learner) * ((2 if run.optimizer.name == "muon" else 3) + bool(run.ema)) * (run.keep + ready.validation),
        parts=(part, min(run.together, part)),
    )


def _pieces(run: Run) -> Iterator[tuple[float, int, int]]:
    """The parts of a run between which neither changes: the share of it that each lasts, the micro-batches of its steps, how long its sequences are."""
    begins = sorted({begin for stages in (run.data.step, run.data.longest) for begin, _ in stages})
    for begin, end in itertools.pairwise([*begins, 1.0]):
        yield end - begin, staged(run.data.step, begin), staged(run.data.longest, begin)


def _stage(ready: Prepared, begin: float, seconds: float) -> Stage:
    """Some steps as they are made when that share of the run has passed."""
    clock = Clock(steps=begin * 1e6, share=begin)
    feed = ready.feed(Duration.of("1000000"), Begin(Place(), clock, begin), {})
    tokens, count, start, steps = 0, 0, 0.0, iter(feed)
    try:
        while ready.group.agree(float(count <= LEAST or time.perf_counter() - start < seconds)):  # or one rank waits for another that is done
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
    return Stage(speed, *ready.stream(begin).passing())


def largest(run: Run, group: Group) -> int:
    """The largest micro-batch, in halves of the run's, with which a step fits into memory; 0 where none does."""
    size = run.data.amount // (1 if run.together > 1 else 2)
    while size >= run.data.least:
        if _fits(replace(run, data=run.data.of(size), together=1), group):
            return size
        size //= 2
    return 0


def _fits(run: Run, group: Group) -> bool:
    try:
        plan(run, group, seconds=0.0)
    except torch.OutOfMemoryError:
        return False
    finally:
        _let_go(group)
    return True


def too_large(run: Run, group: Group) -> UserError:
    """What to say of a batch that does not fit. Each rank finds it out alone, without its share of the others' memory: nobody knows what they are doing."""
    _let_go(group)
    alone, ways = Group(device=group.device), []
    if found := largest(run, alone):
        size = staged(run.data.step, 0.0) * run.data.amount // found
        ways.append(f"{found:,} do: say --data.{run.data.counted} {found} --data.step '[[0, {size}]]' --together 1, which makes steps of the same size")
    if not run.recompute and _fits(replace(run, recompute=True), alone):
        ways.append("they do as they are, for a third more work, with --recompute yes")
    if not ways:
        return UserError("not even one sequence fits into memory; choose a smaller model, or shorter sequences with --data.longest")
    was = f"micro-batches of {run.data.amount:,} {run.data.units}{f', {run.together} at once,' if run.together > 1 else ''} do not fit into memory"
    return UserError(f"{was}; {'; or '.join(ways)}")


def said(seconds: float) -> str:
    """For people."""
    for size, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {name}"
    return f"{seconds:,.0f} seconds"


def _let_go(group: Group) -> None:
    """What did not fit is still held by the frames of the error that is being handled; what did, by cycles of its own."""
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
