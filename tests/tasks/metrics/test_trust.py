"""Intervals hold the truth as often as they say, and two models that are alike are not told apart more often than they should be."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from unmask.errors import UserError
from unmask.tasks.metrics import scores, trust
from unmask.tasks.metrics.trust import Interval, differences, intervals, mcnemar, share

Statistic = trust.Statistic


def accuracy(weights: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Of two cells, wrong and right."""
    return weights[..., 1] / weights.sum(-1)


def test_the_same_seed_the_same_interval() -> None:
    first, again, other = (intervals({"a": accuracy}, [40, 160], seed=seed)["a"] for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert first.value == 0.8
    assert first.low < 0.8 < first.high


def test_a_narrower_level_is_a_narrower_interval() -> None:
    wide, narrow = (intervals({"a": accuracy}, [40, 160], level=level)["a"] for level in (0.95, 0.5))
    assert wide.low < narrow.low < narrow.high < wide.high
    assert narrow.high - narrow.low == pytest.approx(2 * 0.6745 * np.sqrt(0.16 / 200), rel=0.15)


@pytest.mark.parametrize("metric", [scores.accuracy, scores.f1, scores.matthews])
def test_cells_and_rows_give_the_same_interval(metric: Statistic) -> None:
    """Whether four cells are drawn, or examples that belong to cells, or examples one by one."""
    draw = np.random.default_rng(0)
    gold = draw.integers(0, 2, 500)
    said = np.where(draw.random(500) < 0.8, gold, 1 - gold)
    pairs, often = np.unique(np.stack([gold, said]), axis=1, return_counts=True)
    halves = np.concatenate([pairs] * 20, 1)
    cells = intervals({"a": partial(metric, *pairs)}, often, 4_000)["a"]
    rows = intervals({"a": partial(metric, gold, said)}, np.ones(500), 4_000)["a"]
    parts = np.bincount(draw.integers(0, 20, 500) * 4 + gold * 2 + said, minlength=80)
    between = intervals({"a": partial(metric, *halves)}, parts, 4_000)["a"]
    assert 16 * len(often) < 500 < 16 * len(parts), "the two ways of drawing"
    assert cells.value == pytest.approx(rows.value) == pytest.approx(between.value)
    for one in (rows, between):
        assert (one.low, one.high) == pytest.approx((cells.low, cells.high), abs=0.012)


def test_few_at_a_time_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=300)
    whole = intervals({"a": partial(scores.mean, values)}, np.ones(300))["a"]
    monkeypatch.setattr(trust, "AT_ONCE", 700)
    found = intervals({"a": partial(scores.mean, values)}, np.ones(300))["a"]
    assert (found.low, found.high) == pytest.approx((whole.low, whole.high), abs=1e-12)


def held(metric: str, runs: int, size: int) -> float:
    """How often the interval holds the metric of an endless test set."""
    draw = np.random.default_rng(len(metric))
    found = 0
    for run in range(runs):
        if metric == "mean":
            values = draw.exponential(size=size)
            one = intervals({"a": partial(scores.mean, values)}, np.ones(size), seed=run)["a"]
            truth = 1.0
        elif metric == "pearson":
            gold = draw.normal(size=size)
            said = 0.6 * gold + 0.8 * draw.normal(size=size)
            one = intervals({"a": partial(scores.pearson, gold, said)}, np.ones(size), seed=run)["a"]
            truth = 0.6
        else:
            cells = draw.multinomial(size, [0.5, 0.1, 0.1, 0.3])
            gold, said = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
            one = intervals({"a": partial(getattr(scores, metric), gold, said)}, cells, seed=run)["a"]
            truth = {"accuracy": 0.8, "positive_f1": 0.75, "matthews": (0.15 - 0.01) / 0.24}[metric]
        found += one.low <= truth <= one.high
    return found / runs


@pytest.mark.parametrize("metric", ["accuracy", "positive_f1", "matthews"])
def test_95_of_100_intervals_hold_the_truth(metric: str, full: bool) -> None:
    runs = 4_000 if full else 500
    assert held(metric, runs, 400) == pytest.approx(0.95, abs=0.015 if full else 0.03)


@pytest.mark.evidence
@pytest.mark.parametrize("metric", ["mean", "pearson"])
def test_95_of_100_intervals_of_numbers_hold_the_truth(metric: str) -> None:
    assert held(metric, 400, 200) == pytest.approx(0.945, abs=0.035)


def test_an_interval_of_nothing() -> None:
    with pytest.raises(UserError, match=r"^there is no example to measure; give one at least$"):
        intervals({"a": accuracy}, [0, 0])
    with pytest.raises(UserError, match="no example"):
        intervals({"a": accuracy}, [])


def test_it_is_said_in_a_line() -> None:
    assert str(Interval(0.8, 0.75, 0.85)) == "0.8000 [0.7500, 0.8500]"
    assert str(trust.Difference(0.01, -0.02, 0.04, 0.5)) == "+0.0100 [-0.0200, +0.0400], p = 0.5"


# ---- all right or all wrong


def test_all_right_is_not_sure_to_be_right_for_ever() -> None:
    found = share(20, 20)
    assert (found.value, found.high) == (1, 1)
    assert 0.80 < found.low < 0.86
    assert share(0, 20).high == pytest.approx(1 - found.low)
    assert share(0, 20).low == 0


# ---- two models


def two(size: int, better: float, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Whether each was right: both of them on easy examples and by luck, the second `better` more often."""
    hard = draw.random(size)
    return tuple((hard + draw.normal(0, 0.3, size) < 0.7 + more) for more in (0, better))  # type: ignore[return-value]


def test_a_model_is_no_better_than_itself() -> None:
    right = two(200, 0, np.random.default_rng(0))[0]
    metric = {"accuracy": partial(scores.mean, right)}
    found = differences(metric, metric, np.ones(200))["accuracy"]
    assert (found.value, found.low, found.high, found.p) == (0, 0, 0, 1)
    assert mcnemar(right, right) == trust.McNemar(0, 0, 1.0)


def test_a_better_model_is_told() -> None:
    first, second = two(2_000, 0.1, np.random.default_rng(0))
    found = differences({"a": partial(scores.mean, first)}, {"a": partial(scores.mean, second)}, np.ones(2_000))["a"]
    assert found.value == pytest.approx(second.mean() - first.mean())
    assert 0 < found.low < found.value < found.high
    assert found.p == pytest.approx(2 / 1001)
    assert mcnemar(first, second).p < 1e-6
    assert mcnemar(first, second).second > mcnemar(first, second).first
    back = differences({"a": partial(scores.mean, second)}, {"a": partial(scores.mean, first)}, np.ones(2_000))["a"]
    assert (back.value, back.low, back.high, back.p) == pytest.approx((-found.value, -found.high, -found.low, found.p))


def test_pairing_takes_out_how_hard_the_examples_are() -> None:
    """Two models that stumble over the same examples: what they differ in is known better than what each is worth."""
    draw = np.random.default_rng(0)
    first = draw.random(500) < 0.7
    second = np.where(draw.random(500) < 0.05, True, first)
    alone = intervals({"a": partial(scores.mean, second)}, np.ones(500))["a"]
    both = differences({"a": partial(scores.mean, first)}, {"a": partial(scores.mean, second)}, np.ones(500))["a"]
    assert both.high - both.low < 0.5 * (alone.high - alone.low)


def test_models_that_are_alike_are_seldom_told_apart(full: bool) -> None:
    """p below 0.05 in about 5 of 100 cases by the bootstrap, and in no more of them by McNemar's test, which is exact and so careful."""
    runs, draw = (2_000 if full else 300), np.random.default_rng(0)
    told, exact, held_ = 0, 0, 0
    for run in range(runs):
        first, second = two(300, 0, draw)
        cells, often = np.unique(np.stack([first, second]), axis=1, return_counts=True)
        found = differences({"a": partial(scores.mean, cells[0])}, {"a": partial(scores.mean, cells[1])}, often, seed=run)["a"]
        told += found.p < 0.05
        held_ += found.low <= 0 <= found.high
        exact += mcnemar(first, second).p < 0.05
    assert told / runs == pytest.approx(0.05, abs=0.015 if full else 0.035)
    assert held_ / runs == pytest.approx(0.95, abs=0.015 if full else 0.035)
    assert exact / runs <= 0.065
