"""What a token costs, against what torch counts while it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import runs
from unmask.data.batch import Batch
from unmask.data.stream import IGNORED
from unmask.model import families
from unmask.model.embed import TextConfig
from unmask.model.encoder import EncoderConfig
from unmask.model.layout import ANTICAUSAL, CAUSAL, FULL, Reach, local
from unmask.model.model import ModelConfig
from unmask.objectives.base import counts
from unmask.objectives.mlm import MLM
from unmask.train import flops
from unmask.train.distribute import Group
from unmask.train.prepared import Prepared
from unmask.train.run import Run


def ready(shards: Path, name: str = "mlm", **changes: Any) -> Prepared:
    return Prepared(runs.learning(name, shards, **changes), Path(), Group())


def with_data(run: Run, **changes: Any) -> Run:
    return replace(run, data=replace(run.data, **changes))


def asked(batch: Batch) -> Batch:
    """Without the rows that only fill its targets up."""
    targets = dict(batch.targets)
    for term in counts(batch):
        if f"{term}.rows" in targets:
            keep = batch.targets[f"{term}.labels"] != IGNORED
            targets |= {name: one[keep] for name, one in targets.items() if name.startswith(f"{term}.")}
    return replace(batch, targets=targets)


def counted(made: Prepared, batch: Batch) -> float:
    """By torch, of the whole batch, without the tokens that a reach leaves out: its plain kernel multiplies them all the same."""
    with FlopCounterMode(display=False) as found, sdpa_kernel(SDPBackend.MATH):
        losses = made.learner(asked(batch))
        torch.stack([made.weights[term] * losses[term] for term in made.terms]).sum().backward()
    shape = made.loaded.model.config.encoder
    if not isinstance(shape, EncoderConfig):
        return float(found.get_total_flops())
    lengths = batch.layout.lengths
    unseen = sum(float((lengths**2).sum()) - pairs(lengths.tolist(), shape.reach[i % len(shape.reach)]) for i in range(shape.depth))
    return found.get_total_flops() - 12 * shape.width * unseen


def pairs(lengths: list[int], reach: Reach) -> int:
    """Of tokens and those that they see, one by one."""
    left, right = (way if way >= 0 else 10**9 for way in reach)
    return sum(-left <= there - here <= right for n in lengths for here in range(n) for there in range(n))


def modern() -> ModelConfig:
    shape = families.shape("modernbert.base")
    encoder = replace(shape.encoder, width=48, depth=4, heads=2, hidden=40, reach=(FULL, local(6), local(6)))  # type: ignore[type-var]
    return replace(shape, encoder=encoder, embed=replace(shape.embed, vocabulary=400, padding=0))  # type: ignore[type-var]


def shaped(width: int, depth: int, **more: Any) -> ModelConfig:
    encoder = EncoderConfig(width, depth, 2, 2 * width, **more)
    return replace(runs.shape(), encoder=encoder, embed=TextConfig(400, positions=512))


@pytest.mark.parametrize("name", runs.LEARNED)
def test_every_objective_is_counted(name: str, shards: Path) -> None:
    """The word heads at the share of the tokens that each asks, ELECTRA's generator, both sides of a bilm."""
    check(ready(shards, name), 0.02)


@pytest.mark.parametrize(
    ("model", "longest"),
    [
        (modern, 48),
        (lambda: shaped(64, 3), 48),
        (lambda: shaped(64, 3, gated=True, attention_gate=True), 48),
        (lambda: shaped(32, 4), 384),  # half of it is attention
        (lambda: shaped(64, 4, distinct=1), 48),  # weights that are used four times
        (lambda: shaped(32, 3, reach=(local(5), CAUSAL, ANTICAUSAL)), 384),
    ],
)
def test_every_shape_is_counted(model: Callable[[], ModelConfig], longest: int, shards: Path) -> None:
    run = with_data(runs.small(shards, model=model(), objective=(MLM(0.4),)), tokens=2048, longest=((0.0, longest),))
    check(Prepared(run, Path(), Group()), 0.01)


def check(made: Prepared, within: float) -> None:
    """Of one batch exactly, and of the run as far as its first batch tells."""
    _, block, number = next(made.stream(0.0).walk())
    batch = made.finish(block.make(number))
    tokens = block.tokens(number)
    labels = {term: count / tokens for term, count in counts(batch).items()}
    assert flops.of_token(made.learner, batch.layout.lengths.numpy(), labels) * tokens == pytest.approx(counted(made, batch), rel=within)
    assert made.flops == flops.of_token(made.learner, block.sequences.lengths, labels)


@pytest.mark.parametrize("reach", [FULL, CAUSAL, ANTICAUSAL, local(0), local(3), (2, 7), (0, 40), (100, -1)])
def test_who_is_seen(reach: Reach) -> None:
    lengths = np.array([1, 2, 5, 17, 40])
    assert flops.seen(lengths, reach) == pytest.approx(pairs(lengths.tolist(), reach) / lengths.sum(), rel=1e-12)


def test_the_mean_over_the_stages_of_a_run(shards: Path) -> None:
    """Lengths by how long each lasts, a rate of masks that falls by its middle."""
    run = with_data(runs.small(shards), tokens=1024)
    halves = ((0.8, 16, 0.34), (0.2, 48, 0.14))  # how long each lasts, its length, and the rate at its middle
    alone = [with_data(run, longest=((0.0, length),)) for _, length, _ in halves]
    early, late = (Prepared(replace(one, objective=(MLM(rate),)), Path(), Group()).flops for one, (_, _, rate) in zip(alone, halves, strict=True))
    assert abs(early / late - 1) > 0.02, "they differ"
    both = replace(with_data(run, longest=((0.0, 16), (0.8, 48))), objective=(MLM(0.5, until=0.1),))
    assert Prepared(both, Path(), Group()).flops == pytest.approx(0.8 * early + 0.2 * late, rel=1e-9)
