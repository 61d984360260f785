"""Pairs and masks together: what is cut is what is asked about, and an evaluation's never move."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from unmask.data.shards import Documents
from unmask.data.stream import Sequences, gathered
from unmask.objectives.base import Reading
from unmask.objectives.mlm import UNITS, Masking, Numbers, Pieces
from unmask.objectives.nsp import KINDS, Pairs

PIECES = Pieces(4, np.arange(1000) < 5, np.arange(1000) > 700)


def documents() -> Documents:
    draw = np.random.default_rng(0)
    lengths = [draw.integers(1, 20, draw.integers(2, 12)) for _ in range(50)]
    sentences = np.cumsum([0, *np.concatenate(lengths)])
    return Documents(np.arange(50), draw.integers(5, 1000, sentences[-1]), sentences, np.cumsum([0, *map(len, lengths)]))


def reading(kind: str, unit: str, *, fixed: bool = False) -> Reading:
    return Reading(Pairs(kind, 2, 3, 64), Masking(PIECES, unit=unit), fixed)


def asked(objective: Reading, cut: Sequences, epoch: int) -> tuple[Numbers, Mapping[str, Numbers]]:
    return objective.ask(gathered(documents(), cut, np.arange(len(cut.samples))), cut, epoch)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("kind", KINDS)
def test_both_are_as_alone(kind: str, unit: str) -> None:
    both = reading(kind, unit)
    cut, alone = both.cut(documents(), 3), both.pairs.cut(documents(), 3)
    assert np.array_equal(cut.starts, alone.starts)
    assert np.array_equal(cut.counts, alone.counts)
    shown, targets = asked(both, cut, 3)
    masked, words = both.masking.ask(gathered(documents(), cut, np.arange(len(cut.samples))), 3)
    assert np.array_equal(shown, masked)
    assert set(targets) == {"words.rows", "words.labels"} | (set() if kind == "none" else {"next.labels"})
    assert all(np.array_equal(targets[name], one) for name, one in words.items())
    if kind != "none":
        assert np.array_equal(targets["next.labels"], alone.labels["next"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fixed", [False, True])
def test_an_evaluation_never_moves(kind: str, fixed: bool) -> None:
    objective = reading(kind, "word", fixed=fixed)
    cuts = [objective.cut(documents(), epoch) for epoch in (0, 1, 17)]
    assert all((np.array_equal(cuts[0].starts, one.starts) and np.array_equal(cuts[0].counts, one.counts)) is fixed for one in cuts[1:])
    found = [asked(objective, cuts[0], epoch)[0] for epoch in (0, 1, 17)]
    assert all(np.array_equal(found[0], one) is fixed for one in found[1:])
    assert np.array_equal(found[0], asked(reading(kind, "word"), cuts[0], 0)[0]), "it is the first epoch's"
