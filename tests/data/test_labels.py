"""Cells of labels: what counts as one, as several, as a number, and as none."""

from __future__ import annotations

import math
from typing import Any

import pytest

from unmask.data.labels import ONE, Reading, label, ordered, reading, said
from unmask.errors import UserError

MANY = Reading("many", ";")


def test_numbers_are_sorted_as_numbers() -> None:
    assert ordered({"10", "2", "1", "-3"}) == ("-3", "1", "2", "10")
    assert ordered({"b", "10", "a", "2"}) == ("2", "10", "a", "b")


@pytest.mark.parametrize(
    ("values", "column", "expected"),
    [
        ([5.0, 3.0, 1.0], "score", Reading("number")),
        ([5, 3, 1], "score", ONE),
        (list(range(30)), "score", Reading("number")),
        (list(range(30)), "label", ONE),
        ([number / 2 for number in range(30)], "label", Reading("number")),
        ([1, 0, None, math.nan], "label", ONE),
        ([True, False], "label", ONE),
        ([["a"], []], "label", Reading("many")),
        (["a;b", "b"], "label", MANY),
        (["a;b", "c;d"], "label", ONE),
        (["a;", "a", "b"], "label", ONE),
        (["Home, Garden", "Home"], "label", Reading("many", ",")),
        (["Home, Garden", "Pets"], "label", ONE),
        ([], "label", ONE),
    ],
)
def test_the_first_cells_say_what_all_are(values: list[Any], column: str, expected: Reading) -> None:
    assert reading(values, column) == expected


@pytest.mark.parametrize(
    ("value", "how", "expected"),
    [
        (" pos ", ONE, "pos"),
        (1.0, ONE, "1"),
        (0.5, ONE, "0.5"),
        (True, ONE, "True"),
        ("none", ONE, "none"),
        ("b; a", MANY, ("b", "a")),
        ([1, 2], Reading("many"), ("1", "2")),
        ("2.5", Reading("number"), 2.5),
    ],
)
def test_what_a_cell_says(value: Any, how: Reading, expected: Any) -> None:
    assert label(value, how, "line 1", "x") == expected


@pytest.mark.parametrize(
    ("value", "how", "says"),
    [
        ("", ONE, "line 1 has no label in 'x'; fill it in, or leave that line out"),
        (math.nan, ONE, "line 1 has no label in 'x'"),
        ("NaN", Reading("number"), "line 1 has no label in 'x'"),
        (None, MANY, "line 1 has no label in 'x'"),
        ("inf", Reading("number"), "line 1 has 'inf' in 'x' where the first lines have numbers"),
        (["a"], ONE, "line 1 has a list in 'x' where the first lines have one label"),
        ("a;a", MANY, "line 1 has a label twice, or an empty one, in 'x'"),
        ("a;", MANY, "line 1 has a label twice, or an empty one, in 'x'"),
        ({"b": 1}, ONE, "line 1 has an object, not a label, in 'x'; name a field of it, such as x.b, with --label"),
    ],
)
def test_cells_that_say_nothing(value: Any, how: Reading, says: str) -> None:
    with pytest.raises(UserError) as caught:
        label(value, how, "line 1", "x")
    assert str(caught.value).startswith(says)


def test_what_is_said_of_them() -> None:
    assert said(["b", "a"] * 3, ONE) == "one of 2 in the first rows: a, b"
    assert said(list("abcdefg"), ONE) == "one of 7 in the first rows: a, b, c, d, e, ..."
    assert said(["a;b", "c"], MANY) == "several with ';' between of 3 in the first rows: a, b, c"
    assert said(["1.5", "0.25"], Reading("number")) == "a number from 0.25 to 1.5"
