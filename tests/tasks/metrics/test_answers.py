"""SQuAD's count of answers, by hand; torchmetrics' word on the whole dev set stands in parity/test_metrics.py."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest

from unmask.errors import UserError
from unmask.tasks.metrics.answers import accepted, best_threshold, exact, normalised, overlap_of_words, with_none


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat!", "cat"),
        ("a cat, an ox & the dog", "cat ox dog"),
        ("Theatre of Athena", "theatre of athena"),
        ("U.S.", "us"),
        ("re-the-ad", "rethead"),  # punctuation goes first
        ("the the", ""),
        ("a\u00a0b\u3000c\n", "b c"),
        ("대한민국의 서울", "대한민국의 서울"),
        ("a형 the서울 형an", "a형 the서울 형an"),
        ("“quoted”—dash", "“quoted”—dash"),  # ASCII punctuation alone, as published
        ("ÀÉ", "àé"),
        ("", ""),
    ],
)
def test_normalisation(text: str, expected: str) -> None:
    assert normalised(text) == expected


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_hangul_stays_as_it_is(form: str) -> None:
    text = unicodedata.normalize(form, "세종대왕이 훈민정음을 만들었다 각갂갃")  # type: ignore[arg-type]
    assert normalised(text) == text
    assert exact([text], text + ".") == 1
    assert overlap_of_words(["세종 대왕"], "세종") == pytest.approx(2 / 3)


def test_the_best_of_several_answers() -> None:
    gold = ["the Denver Broncos", "Broncos"]
    assert exact(gold, "broncos.") == 1
    assert exact(gold, "Denver") == 0
    assert overlap_of_words(gold, "Denver") == pytest.approx(2 / 3)
    assert overlap_of_words(gold, "Broncos Broncos") == pytest.approx(2 / 3)  # a word counts as often as it is there
    assert overlap_of_words(["New York New York"], "new new new") == pytest.approx(4 / 7)
    assert overlap_of_words(gold, "Carolina") == 0


@pytest.mark.parametrize(("said", "right"), [("", 1), ("the", 1), ("...", 1), ("cat", 0)])
def test_no_answer(said: str, right: float) -> None:
    assert exact([], said) == right
    assert overlap_of_words([], said) == right


def test_an_answer_that_is_nothing() -> None:
    """SQuAD's dev set has "." among its answers. Its first script lets that pass, the second, of questions without an answer, does not."""
    assert accepted(["cat", "."]) == ["cat", "."]
    assert accepted(["cat", "."], none=True) == ["cat"]
    assert accepted(["."], none=True) == [""]
    assert (exact(["cat", "."], "?"), exact(["cat", "."], "?", none=True)) == (1, 0)
    assert (overlap_of_words(["cat", "."], ""), overlap_of_words(["cat", "."], "", none=True)) == (1, 0)


# ---- the threshold of no answer

SCORES, SAID = [1.0, 0.0, 0.5, 0.0], ["a", "b", "c", "d"]
THERE, NONE = [True, False, True, False], [0.1, 0.2, 0.3, 0.4]


def test_the_best_threshold_by_hand() -> None:
    """From 2 (nothing is answered) to 3, 2, 2.5 and 1.5."""
    found = best_threshold(SCORES, SAID, THERE, NONE)
    assert (found.value, found.score) == (0.1, 0.75)
    assert with_none(np.array(SCORES), np.array(THERE), np.array(NONE), found.value).mean() == found.score


def test_a_question_without_answer_that_was_left_empty_costs_nothing() -> None:
    assert best_threshold([1.0, 1.0, 1.0], ["a", "", "c"], [True, False, True], [0.1, 0.2, 0.3]).value == 0.3
    assert best_threshold([1.0, 0.0, 1.0], ["a", "x", "c"], [True, False, True], [0.1, 0.2, 0.3]).value == 0.1


@pytest.mark.parametrize("none", [[-5.0, -3.0], [0.0, 0.0], [0.2, 0.4]])
def test_where_no_answer_is_ever_right_none_is_given(none: list[float]) -> None:
    """The published script then says 0, which leaves answers whose none is below it."""
    found = best_threshold([0.0, 0.0], ["a", "b"], [False, False], none)
    assert found.score == 1
    assert with_none(np.zeros(2), np.zeros(2, bool), np.array(none), found.value).mean() == 1
    assert found.value == 0 or min(none) <= 0


def test_as_many_of_each() -> None:
    with pytest.raises(UserError, match="cannot be compared"):
        best_threshold([1.0], ["a"], [True], [0.1, 0.2])
