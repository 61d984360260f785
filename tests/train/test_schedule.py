"""The rate at every moment of a run, against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.config import Clock
from unmask.errors import UserError
from unmask.train.schedule import Schedule, between, staged

SHAPES = ["linear", "cosine", "wsd", "sqrt", "constant"]
AT = {  # the rate's share of its highest, by the share of the run; no warm-up, a decay of 20%
    "linear": {0.0: 1.0, 0.25: 0.75, 0.5: 0.5, 0.9: 0.1, 1.0: 0.0},
    "cosine": {0.0: 1.0, 0.25: (2 + math.sqrt(2)) / 4, 0.5: 0.5, 2 / 3: 0.25, 1.0: 0.0},
    "wsd": {0.0: 1.0, 0.5: 1.0, 0.8: 1.0, 0.9: 0.5, 0.95: 0.25, 1.0: 0.0},
    "sqrt": {0.0: 1.0, 0.5: 1.0, 0.8: 1.0, 0.85: 0.5, 0.9: 1 - math.sqrt(0.5), 1.0: 0.0},
    "constant": {0.0: 1.0, 0.5: 1.0, 1.0: 1.0},
}


@pytest.mark.parametrize("floor", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_its_formula(shape: Any, floor: float) -> None:
    schedule = Schedule(shape, warmup="0", floor=floor)
    for share, kept in AT[shape].items():
        assert schedule.factor(Clock(share=share)) == pytest.approx(floor + (1 - floor) * kept, abs=1e-7), share


@pytest.mark.parametrize(("decay", "share", "kept"), [("50%", 0.5, 1.0), ("50%", 0.75, 0.5), ("100%", 0.25, 0.75), ("0%", 1.0, 1.0)])
def test_a_decay_is_as_long_as_it_says(decay: str, share: float, kept: float) -> None:
    assert Schedule("wsd", warmup="0", decay=decay).factor(Clock(share=share)) == pytest.approx(kept)


@pytest.mark.parametrize(
    ("warmup", "clock", "risen"),
    [
        ("4", Clock(steps=0), 0.25),  # the first of four steps counts as one
        ("4", Clock(steps=2), 0.75),
        ("4", Clock(steps=3), 1.0),
        ("4", Clock(steps=400), 1.0),
        ("10%", Clock(steps=7, share=0.05), 0.5),
        ("10%", Clock(steps=14, share=0.1), 1.0),
        ("1e3tok", Clock(steps=1, tokens=250), 0.25),
        ("1e3tok", Clock(steps=4, tokens=1000), 1.0),
        ("1min", Clock(steps=99, seconds=15), 0.25),
        ("1min", Clock(steps=999, seconds=61), 1.0),
        ("2ep", Clock(steps=99, epochs=0.5), 0.25),
        ("0", Clock(), 1.0),
        ("0%", Clock(), 1.0),
    ],
)
def test_warm_up_by_any_clock(warmup: str, clock: Clock, risen: float) -> None:
    assert Schedule("constant", warmup=warmup).factor(clock) == pytest.approx(risen)


def test_after_warm_up_it_falls_as_if_it_had_fallen_all_along() -> None:
    """As BERT's own code has it: 10% of warm-up end at 90% of the highest rate."""
    schedule = Schedule("linear", warmup="10%")
    found = [schedule.factor(Clock(share=share)) for share in (0.025, 0.075, 0.1, 0.55, 1.0)]
    assert found == pytest.approx([0.25, 0.75, 0.9, 0.45, 0.0])
    assert Schedule("wsd", warmup="10%", floor=0.5).factor(Clock(share=0.05)) == pytest.approx(0.5), "a floor is where it ends, not where it begins"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("warmup", "rate"), [("0", 1), ("1", 1), ("20", 0.05), ("100000", 1e-3), ("1%", 1e-3), ("1e9tok", 1e-3), ("3ep", 1e-3), ("10min", 1e-3)]
)
def test_the_first_step_learns(warmup: str, rate: float, shape: Any) -> None:
    """By a clock that stands at 0, and by one that has hardly moved."""
    assert Schedule(shape, warmup=warmup).factor(Clock()) == pytest.approx(rate)
    assert Schedule(shape, warmup=warmup).factor(Clock(1e-9, 1e-9, 1e-9, 1e-9, 1e-9)) == pytest.approx(rate)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    shape=st.sampled_from(SHAPES),
    warmup=st.sampled_from(["0", "1%", "7", "50%", "300tok"]),
    decay=st.integers(0, 100),
    floor=st.floats(0, 1),
    steps=st.integers(1, 200),
)
def test_every_step_of_every_run_learns(shape: Any, warmup: str, decay: int, floor: float, steps: int) -> None:
    """Each at some rate above 0 and none above the highest; it rises before it falls."""
    schedule = Schedule(shape, warmup, f"{decay}%", floor)
    rates = [schedule.factor(Clock(steps=i, tokens=10 * i, share=i / steps)) for i in range(steps)]
    assert all(0 < rate <= 1 for rate in rates)
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"warmup": "soon"}, r"^'soon' is no duration; write it as 20000 \(steps\), 1e9tok, 3ep, 10min or 2%$"),
        ({"decay": "late"}, r"^'late' is no duration"),
        ({"decay": "2000"}, r"^a decay of 2000 is no share of the run; write it as 20%$"),
        ({"decay": "10min"}, r"^a decay of 10min is no share of the run; write it as 20%$"),
        ({"decay": "150%"}, r"^a decay of 150% is no share of the run; write it as 20%$"),
        ({"floor": -0.1}, r"^a floor of -0.1 is no share of the highest rate; give 0 to 1$"),
        ({"floor": 1.1}, r"^a floor of 1.1 is no share of the highest rate; give 0 to 1$"),
        ({"floor": math.nan}, r"^a floor of nan is no share of the highest rate; give 0 to 1$"),
    ],
)
def test_schedules_that_cannot_be(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        Schedule(**changes)


def test_between_two_ends() -> None:
    assert [between((0.3, 0.1), share) for share in (0, 0.25, 1)] == pytest.approx([0.3, 0.25, 0.1])
    assert [between((0.1, 0.3), share) for share in (-1.0, 0.75, 2.0)] == pytest.approx([0.1, 0.25, 0.3]), "never beyond its ends"
    assert between((0.15,), 0.4) == 0.15


def test_stages_count_from_where_they_begin() -> None:
    stages = [(0.0, "a"), (0.5, "b"), (0.9, "c")]
    assert [staged(stages, share) for share in (0.0, 0.499, 0.5, 0.899, 0.9, 1.0, math.inf)] == ["a", "a", "b", "b", "c", "c", "c"]
    assert staged([(0.0, 7)], 0.3) == 7
