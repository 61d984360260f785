"""Calibration by hand; torchmetrics', scikit-learn's and scipy's word stands in parity/test_metrics.py."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.errors import UserError
from unmask.tasks.metrics.calibration import COLDEST, HOTTEST, Bin, brier, calibration_error, reliability, temperature


def test_bins_by_hand() -> None:
    found = reliability([0.55, 0.6, 0.95, 1.0], [1, 0, 1, 1], bins=10)
    assert found == [
        Bin(pytest.approx(0.5), pytest.approx(0.6), 2, pytest.approx(0.575), 0.5),
        Bin(pytest.approx(0.9), 1.0, 2, pytest.approx(0.975), 1.0),
    ]
    assert calibration_error(found) == pytest.approx((2 * 0.075 + 2 * 0.025) / 4)


def test_the_edges_belong_to_a_bin() -> None:
    assert [(one.low, one.count) for one in reliability([0.0, 0.5, 1.0], [0, 1, 1], bins=2)] == [(0, 2), (0.5, 1)]


def test_what_is_said_and_true_alike_has_no_error() -> None:
    draw = np.random.default_rng(0)
    chances = draw.random(50_000)
    right = draw.random(50_000) < chances
    for adaptive in (False, True):
        assert calibration_error(reliability(chances, right, adaptive=adaptive)) < 0.01
        assert calibration_error(reliability(chances, right & (draw.random(50_000) < 0.5), adaptive=adaptive)) > 0.2


def test_adaptive_bins_hold_as_many_each() -> None:
    draw = np.random.default_rng(0)
    chances = 1 - 0.1 * draw.random(1_500)  # as sure as a trained model
    right = draw.random(1_500) < 0.9
    found = reliability(chances, right, adaptive=True)
    assert [one.count for one in found] == [100] * 15
    assert len(reliability(chances, right)) == 2


def test_the_order_of_examples_does_not_matter() -> None:
    """Half of them are said with the same probability, so that they would be cut amid equals."""
    draw = np.random.default_rng(0)
    chances = np.where(draw.random(400) < 0.5, 1.0, np.round(draw.random(400), 1))
    right = draw.random(400) < 0.5
    order = draw.permutation(400)
    for adaptive in (False, True):
        found = reliability(chances, right, adaptive=adaptive)
        again = reliability(chances[order], right[order], adaptive=adaptive)
        assert [(one.low, one.high, one.count, one.right) for one in found] == [(one.low, one.high, one.count, one.right) for one in again]
        assert sum(one.count for one in found) == 400


def test_brier_by_hand() -> None:
    assert brier([1, 0], [0.8, 0.4]) == pytest.approx((0.04 + 0.16) / 2)
    assert brier([1, 0], [[0.2, 0.8], [0.6, 0.4]]) == pytest.approx((0.08 + 0.32) / 2)


def test_a_temperature_makes_a_model_honest() -> None:
    """Logits three times too large are too sure; divided by what is found they are not."""
    draw = np.random.default_rng(0)
    logits = draw.normal(0, 1.5, (20_000, 4))
    gold = (logits + draw.gumbel(size=logits.shape)).argmax(1)
    found = temperature(3 * logits, gold)
    assert found == pytest.approx(3, rel=0.05)

    def error(by: float) -> float:
        chances = np.exp(3 * logits / by) / np.exp(3 * logits / by).sum(1, keepdims=True)
        return calibration_error(reliability(chances.max(1), chances.argmax(1) == gold))

    assert error(found) < 0.015 < 0.1 < error(1)


def test_the_ends_of_the_range() -> None:
    logits = np.eye(3)
    assert temperature(logits, [0, 1, 2]) == pytest.approx(COLDEST)
    assert temperature(logits, [1, 2, 0]) == pytest.approx(HOTTEST)
    assert temperature(np.full((2, 3), 1e4) + np.eye(2, 3), [0, 1]) == pytest.approx(COLDEST)
    assert temperature(np.ones((2, 3)), [0, 1]) == 1


def test_logits_that_are_none() -> None:
    with pytest.raises(UserError, match=r"^the logits are not all finite, so no temperature suits them; look at the model that gave them$"):
        temperature([[1.0, np.nan]], [0])
