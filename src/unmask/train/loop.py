"""The loop: one for every objective, any number of ranks, and any number of parts that a step is computed in.

A step's loss is the sum over all of its labels divided by their number, whoever computes which part: so every part divides by the global
count, and the parts' gradients add up to the step's.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from unmask.config import Duration
from unmask.data.keys import key
from unmask.errors import UserError
from unmask.objectives.base import counts
from unmask.train import checkpoint, log
from unmask.train.checkpoint import State
from unmask.train.distribute import Group
from unmask.train.doctor import Doctor
from unmask.train.feed import Begin, Step
from unmask.train.prepared import Prepared, prepared
from unmask.train.run import Run


@dataclass(frozen=True)
class Result:
    """Where the model is, and what was measured of it."""

    folder: Path
    metrics: Mapping[str, float]
    steps: int
    finished: bool  # false where a signal stopped it


def train(run: Run, out: Path, group: Group | None = None, *, halt: int | None = None) -> Result:
    """Learn what the run says, into that folder; what is there already of the same run is gone on from.

    After step `halt` it saves and stops, as a signal makes it.
    """
    group = group or Group()
    ready = prepared(run, out, group)
    state = _resumed(ready, out)
    group.wait()  # the log that all ranks read now is rewound
    stop, evaluate, save = (Duration.of(said) for said in (run.stop, run.evaluate, run.save))
    if group.first and ready.source.told:
        print(ready.source.told, flush=True)
    doctor = Doctor(ready.objective, ready.source.entropy())
    written = log.Log(out, run.track, run.json(), quiet=not group.first, flops=ready.flops, limit=ready.limit, doctor=doctor)
    feed = ready.feed(stop, state.begin, {int(row["step"]): row["seconds"] for row in log.rows(out) if "seconds" in row})
    start, before = time.monotonic() - state.begin.clock.seconds, state.begin.clock
    unchecked: tuple[Step, Tensor] | None = None
    with _signals() as asked, closing(feed), ready.group.heard():
        for step in feed:
            norm, norms, losses = _step(ready, step)
            unchecked = _checked(ready, unchecked, (step, norms))
            seconds = feed.tell(step.number, group.agree(time.monotonic() - start) if stop.unit == "seconds" else time.monotonic() - start)
            now = replace(step.clock, steps=step.number + 1, tokens=step.clock.tokens + step.tokens, seconds=seconds, epochs=step.epochs)
            now = replace(now, share=min(stop.passed(now), 1.0))
            state = replace(state, begin=Begin(step.after, now, step.block_share))
            _note(written, ready, step, now, norm, norms, losses)
            last, halted = now.share >= 1, bool(group.agree(float(asked.is_set() or now.steps == halt)))
            evaluating = ready.validation and (last or evaluate.due(before, now))
            saving = last or halted or evaluating or save.due(before, now)
            if saving:
                unchecked = _checked(ready, unchecked, None)
            if evaluating:
                state = _evaluated(ready, written, state)
            if saving:
                written.flush()
                _saved(ready, state, out, best=evaluating and state.worse == 0)
            before = now
            if last or halted or (run.patience and state.worse >= run.patience):
                break
    written.flush()
    if group.first:
        log.draw(out)
    ended = state.begin.clock.share >= 1 or bool(run.patience and state.worse >= run.patience)  # by itself: torchrun must not start it anew
    return Result(out, state.metrics, int(state.begin.clock.steps), ended)


def _step(ready: Prepared, step: Step) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """One step; the gradient's norm, each tensor's, and the losses."""
    losses = backward(ready, step)
    norm, norms = ready.optimizers.step(ready.run.schedule.factor(step.clock), ready.precision.scale)
    norms = ready.precision.judged(norms)
    ready.precision.publish()
    ready.averaged()
    return norm, norms, losses


def backward(ready: Prepared, step: Step) -> dict[str, Tensor]:
    """Forward and backward of every part, until the masters hold the gradient of the whole step; each term's mean over all ranks."""
    run, group, learner = ready.run, ready.group, ready.learner
    total = group.sum({term: float(step.counts.get(term, 0)) for term in ready.terms})
    sums: dict[str, Tensor] = {}
    learner.train()
    ready.optimizers.zero()
    for number, (first, batch) in enumerate(step.parts, 1):
        if ready.dropout:
            torch.manual_seed(key(run.seed, "dropout", step.number, first) >> 1)
        found = learner(batch)
        loss = torch.stack([ready.weights[term] / max(total[term], 1.0) * found[term] for term in ready.terms]).sum()
        ready.gradients.backward(loss, last=number == len(step.parts))
        for name, value in found.items():
            sums[name] = sums[name] + value.detach() if name in sums else value.detach()
    values = [torch.stack(list(sums.values())).double()]
    group.add(values)
    return {name: value / max(total[name.removesuffix(".right")], 1.0) for name, value in zip(sums, values[0].unbind(), strict=True)}


def _checked(ready: Prepared, unchecked: tuple[Step, Tensor] | None, new: tuple[Step, Tensor] | None) -> tuple[Step, Tensor] | None:
    """A gradient that is not finite has changed nothing, and ends the run. Looked at a step late, so that a GPU need not wait."""
    for step, norms in [one for one in (unchecked, new if ready.group.device.type == "cpu" else None) if one is not None]:
        if not bool(torch.isfinite(norms).all()):
            names = [name for name, good in zip(ready.precision.masters, torch.isfinite(norms).tolist(), strict=True) if not good]
            raise UserError(
                f"the gradient of step {step.number} is not finite, first in {names[0]} ({len(names)} of {len(norms)} tensors); nothing was changed by it: "
                "lower optimizer.lr or compute in float32, and run the same command again to go on from the last checkpoint"
            )
    return new


def _note(written: log.Log, ready: Prepared, step: Step, now: object, norm: Tensor, norms: Tensor, losses: dict[str, Tensor]) -> None:
    clock = step.clock
    facts = {"step": step.number, "tokens": clock.tokens + step.tokens, "share": clock.share, "seconds": getattr(now, "seconds", 0.0)}
    facts |= {"wall": facts["seconds"], "lr": ready.run.optimizer.lr * ready.run.schedule.factor(clock), "clip": ready.run.optimizer.clip}
    loss = torch.stack([ready.weights[term] * losses[term].float() for term in ready.terms]).sum()
    named = {name if name.endswith(".right") else f"{name}.loss": value for name, value in losses.items()}
    first, last = (norms[places].norm() for places in ready.ends)
    scale = {} if ready.precision.scale is None else {"scale": ready.precision.scale.clone()}
    written.step(facts, {"loss": loss, **named, "norm": norm, "through": first / last.clamp(min=1e-30), **scale})


@torch.no_grad()
def evaluated(ready: Prepared) -> dict[str, float]:
    """Every term's loss, and the share of right answers, on the validation documents; pairs and masks are the same each time."""
    group, learner = ready.group, ready.learner
    learner.eval()
    sums: dict[str, Tensor] = {}
    labels: dict[str, float] = {}
    seen = 0
    stream = ready.stream(1.0, fixed=True)
    for number, (after, block, index) in enumerate(stream.walk()):
        seen += block.tokens(index)
        if number % group.ranks == group.rank:
            batch = block.make(index)
            for term, count in counts(batch).items():
                labels[term] = labels.get(term, 0.0) + count
            for name, value in learner(ready.finish(batch)).items():
                sums[name] = sums.get(name, torch.zeros((), device=group.device)) + value.double()
        if after.epoch or seen >= ready.run.evaluate_tokens:
            break
    if ready.sharded and group.rank > number % group.ranks:  # the others are at one more batch, and need this rank's weights for it
        learner(ready.finish(block.make(index)))
    learner.train()
    names = [name for term in ready.terms for name in (term, f"{term}.right")]
    total = group.sum({name: float(sums.get(name, torch.zeros(()))) for name in names} | {f"{term}.count": labels.get(term, 0.0) for term in ready.terms})
    found = {name: total[name] / max(total[f"{name.removesuffix('.right')}.count"], 1.0) for name in names}
    return {"loss": sum(ready.weights[term] * found[term] for term in ready.terms), **found}


def _evaluated(ready: Prepared, written: log.Log, state: State) -> State:
    found = {f"valid.{name}": value for name, value in (evaluated(ready) | ready.source.measured(ready.learner)).items()}
    score = ready.source.score(found)
    better = state.best is None or score < state.best
    clock = state.begin.clock
    written.evaluated({"step": clock.steps, "tokens": clock.tokens, "share": clock.share, **found}, best=better)
    return replace(state, best=score if better else state.best, worse=0 if better else state.worse + 1, metrics=found)


def _saved(ready: Prepared, state: State, out: Path, *, best: bool) -> None:
    masters, mean, optimizer = (ready.shares.gathered(own) for own in (ready.precision.masters, ready.mean, ready.optimizers.state()))
    if ready.group.first:
        inside = {f"model.{name}" for name, _ in ready.loaded.model.named_parameters()}
        exact = bool(ready.mean) or ready.kind == "float64"  # where the folder's weights, in float32, are not the masters
        kept = {name: p for name, p in masters.items() if exact or name not in inside}
        parts = {"optimizer": optimizer, "masters": kept, "scale": ready.precision.state()}
        tensors = {f"{part}:{name}": value for part, found in parts.items() for name, value in found.items()}
        checkpoint.save(out, ready.folder(state.metrics, mean or masters), tensors, state, ready.run.keep, best=best)
    ready.group.wait()


@torch.no_grad()
def _resumed(ready: Prepared, out: Path) -> State:
    """From the newest checkpoint that is whole; from the beginning where there is none."""
    if ready.group.first:
        checkpoint.clean(out)
    ready.group.wait()
    found = checkpoint.newest(out)
    if found is None:
        if ready.group.first:
            log.rewind(out, 0)
        return State(Begin())
    state, tensors = checkpoint.restore(found)
    model = {f"model.{name}": p for name, p in checkpoint.model(found).named_parameters()}
    exact = checkpoint.part(tensors, "masters")
    for name, p in ready.precision.masters.items():
        whole = exact.get(name, model.get(name))
        p.copy_(p if whole is None else ready.shares.mine(whole))
        if ready.mean and name in model:
            ready.mean[name].copy_(ready.shares.mine(model[name]))
    ready.precision.restore(checkpoint.part(tensors, "scale"))
    ready.precision.publish()
    ready.optimizers.restore(checkpoint.part(tensors, "optimizer"))
    if ready.group.first:
        log.rewind(out, int(state.begin.clock.steps))
    return state


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """SIGTERM and SIGINT ask to save and stop; a second one stops at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {one: signal.signal(one, ask) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
