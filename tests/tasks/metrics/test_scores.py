"""Metrics over arrays, where no other library has a word to say; what scikit-learn and scipy say stands in parity/test_metrics.py."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.errors import UserError
from unmask.tasks.metrics import scores

NUMBERS = (scores.pearson, scores.spearman, scores.squared_error, scores.absolute_error, scores.r2)
LABELS = (scores.accuracy, scores.f1, scores.positive_f1, scores.matthews)


# ---- weights

weighed = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30).filter(lambda rows: any(row[2] for row in rows))


@pytest.mark.parametrize("metric", [*LABELS, *NUMBERS])
@settings(max_examples=60)
@given(weighed)
def test_counting_twice_is_being_there_twice(metric: Callable[..., Any], rows: list[tuple[int, int, int]]) -> None:
    """Also where a label, or all but one value, is not drawn at all."""
    gold, said, often = map(np.array, zip(*rows, strict=True))
    expected = metric(np.repeat(gold, often), np.repeat(said, often))
    assert metric(gold, said, often.astype(float)) == pytest.approx(expected, abs=1e-12)
    both = metric(gold, said, np.stack([often, np.ones(len(often))]).astype(float))
    assert both == pytest.approx([expected, metric(gold, said)], abs=1e-12)


@pytest.mark.parametrize("average", ["macro", "micro", "weighted"])
@pytest.mark.parametrize("flags", [True, False])
def test_every_average_takes_weights(average: str, flags: bool) -> None:
    draw = np.random.default_rng(0)
    shape = (50, 4) if flags else (50,)
    gold, said = (draw.integers(0, 2 if flags else 4, shape) for _ in range(2))
    often = draw.integers(0, 3, (3, 50))
    expected = [scores.f1(np.repeat(gold, row, 0), np.repeat(said, row, 0), average=average) for row in often]
    assert scores.f1(gold, said, often.astype(float), average) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", [scores.roc_area, scores.average_precision, scores.log_loss, scores.top])
def test_scores_take_weights(metric: Callable[..., Any]) -> None:
    """Also where a label is never true in a resample, or always."""
    draw = np.random.default_rng(0)
    chances = draw.dirichlet(np.ones(8), 20)
    gold = draw.integers(0, 8, 20)
    often = draw.integers(0, 3, (3, 20))
    assert len(set(gold)) > min(len(set(np.repeat(gold, row))) for row in often)
    expected = [metric(np.repeat(gold, row), np.repeat(chances, row, 0)) for row in often]
    assert metric(gold, chances, often.astype(float)) == pytest.approx(expected, abs=1e-12)
    assert len(set(expected)) == 3


def test_resamples_of_many_numbers_share_ranks() -> None:
    """Which moves the correlation by a few millionths, where resamples differ by thousandths."""
    draw = np.random.default_rng(0)
    gold = draw.normal(size=30_000)
    said = np.where(draw.random(30_000) < 0.3, 0, gold + draw.normal(size=30_000))  # a third of them tied
    often = np.random.default_rng(1).multinomial(30_000, np.full(30_000, 1 / 30_000), 3)
    exact = [scores.spearman(np.repeat(gold, row), np.repeat(said, row)) for row in often]
    assert scores.spearman(gold, said, often.astype(float)) == pytest.approx(exact, abs=2e-5)
    assert scores.spearman(gold, said, often[0].astype(float)) == pytest.approx(exact[0], abs=1e-12)


# ---- where a metric is not defined


@pytest.mark.parametrize("metric", [scores.pearson, scores.spearman])
@pytest.mark.parametrize("constant", [0.0, 0.1, 1e9, -3e-300])
def test_a_constant_correlates_with_nothing(metric: Callable[..., float], constant: float) -> None:
    """0.1 three times has a mean that is not 0.1."""
    numbers = [1.0, 2.0, 4.0]
    assert metric([constant] * 3, numbers) == 0
    assert metric(numbers, [constant] * 3) == 0
    assert metric([constant], [constant]) == 0


def test_a_resample_of_one_value_correlates_with_nothing() -> None:
    gold, said = np.array([0.1, 0.7, 0.3]), np.array([0.3, 0.1, 0.7])
    weights = np.array([[3.0, 0, 0], [0, 3, 0], [0, 0, 3], [1, 1, 1]])
    assert scores.pearson(gold, said, weights)[:3].tolist() == [0, 0, 0]
    assert scores.spearman(gold, said, weights)[:3].tolist() == [0, 0, 0]
    assert scores.r2(gold, said, weights)[:3].tolist() == [0, 0, 0]


@pytest.mark.parametrize("metric", [scores.pearson, scores.spearman])
def test_a_model_that_fell_apart_is_not_the_best(metric: Callable[..., float]) -> None:
    assert np.isnan(metric([1.0, 2.0, 3.0], [1.0, np.nan, 3.0]))
    assert np.isnan(metric([1.0, 2.0, 3.0], [1.0, np.nan, 3.0], np.ones((2, 3)))).all()
    assert np.isnan(scores.pearson([1.0, 2.0, 3.0], [1.0, np.inf, 3.0]))
    assert scores.spearman([1.0, 2.0, 3.0], [1.0, 2.0, np.inf]) == pytest.approx(1)


def test_one_label_only() -> None:
    assert scores.matthews([1, 1], [1, 1]) == 0
    assert scores.f1(["a", "a"], ["a", "a"]) == 1
    assert scores.positive_f1([0, 0], [0, 0]) == 0
    assert scores.f1(np.zeros((3, 2)), np.zeros((3, 2)), average="micro") == 0
    assert scores.r2([2.0, 2.0], [2.0, 2.0]) == 1
    assert scores.r2([2.0, 2.0], [2.0, 3.0]) == 0
    assert scores.roc_area([1, 1], [0.3, 0.4]) == 0
    assert scores.average_precision([0, 0], [0.3, 0.4]) == 0


def test_huge_and_tiny_numbers() -> None:
    gold = np.array([1.0, 2.0, 3.0, 5.0])
    for size in (1e300, 1e-300):
        assert scores.pearson(gold * size, gold**2 * size) == pytest.approx(scores.pearson(gold, gold**2), abs=1e-12)
    assert scores.pearson(gold + 1e8, gold**2) == pytest.approx(scores.pearson(gold, gold**2), abs=1e-7)


def test_labels_may_be_names() -> None:
    gold, said = ["서울", "b", "c", "c"], ["서울", "c", "c", "b"]
    assert scores.accuracy(gold, said) == 0.5
    assert scores.f1(gold, said) == pytest.approx((1 + 0 + 0.5) / 3)
    assert scores.positive_f1(gold, said, positive="c") == 0.5


def test_what_cannot_be_measured() -> None:
    with pytest.raises(UserError, match=r"^3 true answers and 2 given ones cannot be compared; give as many of each$"):
        scores.accuracy([1, 2, 3], [1, 2])
    with pytest.raises(UserError, match=r"^there is no example to measure; give one at least$"):
        scores.pearson([], [])
    with pytest.raises(UserError, match=r"^F1 is averaged by macro, micro or weighted, not by 'mean'; name one of them$"):
        scores.f1([1], [1], average="mean")


# ---- scores of every label


def test_the_first_of_equal_scores_is_the_highest() -> None:
    """As argmax has it, so that a model that says the same of all labels is right by chance and not always."""
    scored = np.zeros((4, 4))
    assert scores.top([0, 1, 2, 3], scored, k=1) == 0.25
    assert scores.top([0, 1, 2, 3], scored, k=3) == 0.75
    assert scores.top([0, 1, 2, 3], scored, k=9) == 1
    draw = np.random.default_rng(0)
    scored, gold = draw.integers(0, 3, (200, 5)), draw.integers(0, 5, 200)
    assert scores.top(gold, scored, k=1) == scores.accuracy(gold, scored.argmax(1))


def test_the_mean_over_labels_leaves_out_those_never_true() -> None:
    gold = np.array([[1, 0, 1], [0, 0, 1], [1, 0, 1]])
    chances = np.array([[0.9, 0.2, 0.1], [0.1, 0.3, 0.2], [0.8, 0.1, 0.3]])
    assert scores.roc_area(gold, chances) == 1  # of the first alone: the last is always true
    assert scores.average_precision(gold, chances) == 1


# ---- thresholds


def best(gold: list[int], chances: list[float]) -> float:
    return float(scores.best_thresholds(np.array(gold)[:, None], np.array(chances)[:, None])[0])


def test_a_threshold_stands_amid_the_gap() -> None:
    assert best([1, 1, 0, 0], [0.9, 0.7, 0.3, 0.1]) == pytest.approx(0.5)
    assert best([1, 0, 0, 0], [0.9, 0.7, 0.3, 0.1]) == pytest.approx(0.8)
    assert best([1, 1], [0.6, 0.4]) == pytest.approx(0.2)  # between the least and 0


def test_of_equal_thresholds_the_one_nearest_a_half() -> None:
    """F1 is 2/3 both for the first alone and for all three."""
    gold, chances = np.array([1, 0, 0, 1]), np.array([0.95, 0.9, 0.45, 0.35])
    for threshold in (0.92, 0.2):
        assert scores.positive_f1(gold, chances >= threshold) == pytest.approx(2 / 3)
    assert best(list(gold), list(chances)) == pytest.approx(0.175)


def test_a_label_that_is_never_true_keeps_a_half() -> None:
    assert best([0, 0], [0.9, 0.1]) == 0.5


def test_equal_chances_are_on_one_side() -> None:
    assert best([1, 0, 1, 0], [0.5, 0.5, 0.5, 0.2]) == pytest.approx(0.35)


@pytest.mark.parametrize("low", [0.3, float(np.nextafter(0.3, 1))])
def test_neighbouring_floats_are_kept_apart(low: float) -> None:
    """What stands between them is rounded to the one or to the other."""
    high = float(np.nextafter(low, 1))
    threshold = best([1, 0], [high, low])
    assert low < threshold <= high


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1)), min_size=1, max_size=20))
def test_no_threshold_is_better(rows: list[tuple[bool, float]]) -> None:
    gold, chances = map(np.array, zip(*rows, strict=True))
    reached = scores.positive_f1(gold, chances >= best(list(gold), list(chances)))
    for other in {*chances, 0.0, 0.5, 1.1}:
        if gold.any():
            assert reached >= scores.positive_f1(gold, chances >= other) - 1e-12


# ---- without scikit-learn

ALONE = """
import sys
sys.modules.update(dict.fromkeys(["sklearn", "sklearn.metrics", "scipy", "scipy.stats"]))
from unmask.errors import UserError
from unmask.tasks import metrics
labels = [0, 1, 1], [0, 1, 0]
print(*(round(float(metric(*labels)), 3) for metric in (metrics.accuracy, metrics.f1, metrics.matthews, metrics.pearson, metrics.spearman)))
print(metrics.entity_f1([{(0, 1, "A")}], [{(0, 1, "A")}]), metrics.exact(["a"], "b"))
tally = metrics.Tally("one", ["no", "yes"])
for gold, said in zip(*labels):
    tally.add(gold, said)
print(sorted(tally.intervals()))
for metric in (metrics.roc_area, metrics.average_precision, metrics.mcnemar):
    try:
        metric(*labels)
    except UserError as error:
        print(error)
"""


def test_what_training_needs_needs_no_other_library() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "0.667 0.667 0.5 0.5 0.5",
        "1.0 0.0",
        "['accuracy', 'f1', 'macro_f1', 'matthews', 'weighted_f1']",
        "the area under ROC needs sklearn: pip install 'unmask[study]'",
        "the average precision needs sklearn: pip install 'unmask[study]'",
        "comparing two models needs scipy: pip install 'unmask[study]'",
    ]
