"""`unmask prove`: that a run computes what it says, shown on its own data, in float64 without dropout.

One step is computed in one part, alone, packed: that is the reference. Then in more parts, by more ranks, padded, recomputed, compiled. Each
tensor's gradient is compared relative to its norm; what float32 makes of the same stands beside it. Last, a run that is stopped and resumed
must end in the weights of one that is not, bit for bit.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from unmask.config import Duration
from unmask.model import store
from unmask.train import loop
from unmask.train.distribute import Group, group
from unmask.train.feed import Begin
from unmask.train.prepared import Prepared
from unmask.train.run import Run

PARTS = 8  # micro-batches of the step
EXACT = 1e-9  # of a gradient's norm, in float64
STEPS = 6  # of the run that is resumed
KINDS: tuple[Literal["float64", "float32"], ...] = ("float64", "float32")
Gradients = dict[str, Tensor]


@dataclass(frozen=True)
class Proof:
    """How far one way of computing the step is from the reference: its loss, and the worst tensor's gradient relative to its norm."""

    way: str
    loss: float
    gradient: float
    tensor: str
    single: float  # the same in float32
    good: bool

    def __str__(self) -> str:
        said = "proven" if self.good else "WRONG"
        if self.way.startswith("resumed"):
            return f"{said}: {self.way}, the weights are {'the same bit for bit' if self.good else f'others, first {self.tensor}'}"
        far = f"loss {self.loss:.1e}, gradient {self.gradient:.1e} of its norm (worst: {self.tensor}), in float32 {self.single:.1e}"
        return f"{said}: {self.way}: {far}"


def prove(run: Run, *, ranks: tuple[int, ...] = (2, 4), compiled: bool = True) -> Iterator[Proof]:
    """Every way, one after another."""
    run = replace(run, model=run.model.without_dropout(), compile="no", layout="packed", track="", recompute=False, ema=0.0)
    run = replace(run, data=replace(run.data, step=((0.0, PARTS),)))
    ways: list[tuple[str, Run, int]] = [(f"in {PARTS // together} parts", replace(run, together=together), 1) for together in (2, 1)]
    ways += [(f"by {count} ranks{', each with its share of the weights' if run.shard else ''}", run, count) for count in ranks]
    ways += [("padded", replace(run, together=1, layout="padded"), 1), ("recomputed", replace(run, together=1, recompute=True), 1)]
    ways += [("compiled", replace(run, together=PARTS, compile="yes"), 1)] if compiled else []
    reference = {kind: _computed(replace(run, together=PARTS, precision=kind)) for kind in KINDS}
    for name, way, count in ways:
        found = {kind: _computed(replace(way, precision=kind), count) for kind in KINDS}
        yield _compared(name, reference["float64"], found["float64"], found["float32"])
    yield _resumed(run)


def _compared(way: str, reference: tuple[float, Gradients], found: tuple[float, Gradients], single: tuple[float, Gradients]) -> Proof:
    far, tensor = _farthest(reference[1], found[1])
    loss = abs(reference[0] - found[0]) / max(abs(reference[0]), 1e-300)
    return Proof(way, loss, far, tensor, _farthest(reference[1], single[1])[0], far <= EXACT and loss <= EXACT)


def _farthest(reference: Gradients, found: Gradients) -> tuple[float, str]:
    """The tensor whose gradient is farthest, relative to its norm; one that is zero in truth (a key's bias) relative to the mean norm."""
    mean = sum(float(g.double().norm()) for g in reference.values()) / len(reference)
    scales = {name: max(float(g.double().norm()), 1e-3 * mean) for name, g in reference.items()}
    return max((float((reference[name].double() - found[name].double()).norm()) / scale, name) for name, scale in scales.items())


def _computed(run: Run, ranks: int = 1) -> tuple[float, Gradients]:
    """The step's loss and gradients, by so many ranks."""
    if ranks == 1:
        return _gradients(run, Group())
    with tempfile.TemporaryDirectory() as place:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        spawn(_ranked, (run, ranks, port, place), ranks)
        kept = torch.load(Path(place) / "found.pt", weights_only=True)
        return kept["loss"], kept["gradients"]


def _ranked(rank: int, run: Run, ranks: int, port: int, place: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with group("cpu") as together:
        loss, gradients = _gradients(replace(run, together=1), together)
        if rank == 0:
            torch.save({"loss": loss, "gradients": gradients}, Path(place) / "found.pt")


def _gradients(run: Run, together: Group) -> tuple[float, Gradients]:
    ready = Prepared(run, Path(), together)
    feed = ready.feed(Duration.of("1"), Begin(), {})
    try:
        losses = loop.backward(ready, next(iter(feed)))
    finally:
        feed.close()
    loss = sum(ready.weights[term] * float(losses[term]) for term in ready.terms)
    return loss, ready.shares.gathered({name: p.grad.cpu() for name, p in ready.precision.masters.items() if p.grad is not None})


def _resumed(run: Run) -> Proof:
    """Some steps at once, and the same with a stop in the middle."""
    short = replace(run, data=replace(run.data, step=((0.0, 2),)), stop=str(STEPS), save=str(STEPS // 2), evaluate_tokens=0, precision="float32", together=1)
    with tempfile.TemporaryDirectory() as place:
        whole, halves = (_weights(short, Path(place) / name, stops) for name, stops in (("whole", False), ("halves", True)))
    differ = [name for name in whole if not torch.equal(whole[name], halves[name])]
    return Proof("resumed in the middle", 0.0, 0.0, differ[0] if differ else "", 0.0, not differ)


def _weights(run: Run, out: Path, stops: bool) -> Gradients:
    if stops:
        loop.train(run, out, Group(), halt=STEPS // 2)
    loop.train(run, out, Group())
    return {name: p.detach() for name, p in store.load(out).model.named_parameters()}
