"""Where an answer stands, and which choice is right."""

from __future__ import annotations

from typing import Any

import pytest

from unmask.data.questions import _found, counting, right
from unmask.errors import UserError


@pytest.mark.parametrize(("start", "place"), [(0, 0), (6, 6), (1, 0), (3, 0), (4, 6), (5, 6), (99, 12), (None, 0)])
def test_an_answer_stands_where_it_should_or_nearest_to_there(start: int | None, place: int) -> None:
    assert _found(start, "ab", "ab----ab----ab", "question 1") == place


@pytest.mark.parametrize(
    ("answers", "how"),
    [
        ([(0, 2), (1, 2)], "0"),
        ([(1, 2), (1, 2)], "0"),
        ([(1, 2), (2, 2)], "1"),
        ([("1", 3), ("3", 3), ("2", 3)], "1"),
        ([("0", 2), ("2", 2)], "0"),
        ([("a", 2), ("B", 2)], "A"),
        ([("a", 2), ("both", 2)], "text"),
        ([("A", 2), ("", 2)], "text"),
    ],
)
def test_how_the_right_choice_is_named(answers: list[tuple[Any, int]], how: str) -> None:
    assert counting(answers) == how


def test_the_right_choice() -> None:
    found = ["so", "not", "3"]
    assert [right(answer, "0", found, "", "") for answer in (0, "2")] == [0, 2]
    assert [right(answer, "1", found, "", "") for answer in (1, "3")] == [0, 2]
    assert [right(answer, "A", found, "", "") for answer in ("a", " C ")] == [0, 2]
    assert right("not", "text", found, "", "") == 1
    for answer, how, counted in [
        (3, "0", "counted from 0"),
        (0, "1", "counted from 1"),
        ("D", "A", "counted A, B, ..."),
        ("yes", "text", "named by their text"),
    ]:
        with pytest.raises(UserError, match=f"^line 1 says '{answer}' in 'x', which is none of its 3 choices, {counted}; mend it$"):
            right(answer, how, found, "line 1", "x")
