"""Marks to tags and back, in every scheme; what a scheme leaves open is decided as it was meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.data import marks
from unmask.data.marks import Mark
from unmask.errors import UserError

SPANS = [(0, 2), (3, 5), (6, 8), (9, 11), (12, 14)]
SCHEMES = {  # all of the same: PER of two words, at once PER of one, a gap, LOC of one
    "IOB2": "B-PER I-PER B-PER O B-LOC",
    "IOB1": "I-PER I-PER B-PER O I-LOC",
    "IOBES": "B-PER E-PER S-PER O S-LOC",
    "BILOU": "B-PER L-PER U-PER O U-LOC",
    "BMES": "B-PER E-PER S-PER O S-LOC",
    "Korean": "PER-B PER-I PER-B O LOC-B",
    "Naver": "PER_B PER_I PER_B - LOC_B",
}


@pytest.mark.parametrize("name", SCHEMES)
def test_schemes_need_no_telling_apart(name: str) -> None:
    tags = SCHEMES[name].split()
    found = marks.marks(SPANS, tags, marks.style(tags))
    assert found == (Mark("PER", 0, 5), Mark("PER", 6, 8), Mark("LOC", 12, 14))
    assert marks.iob(SPANS, found) == SCHEMES["IOB2"].split()


@st.composite
def marked(draw: st.DrawFn) -> tuple[list[str], tuple[Mark, ...]]:
    """Words, and marks over runs of them."""
    words = draw(st.lists(st.text(st.characters(exclude_categories=("Cs", "Zs", "Cc")), min_size=1, max_size=5), min_size=1, max_size=12))
    _, spans = marks.placed(words, " ")
    found, place = [], 0
    while place < len(words):
        length = draw(st.integers(0, 3))
        if length:
            last = min(place + length, len(words)) - 1
            found.append(Mark(draw(st.sampled_from(["PER", "LOC", "E-mail"])), spans[place][0], spans[last][1]))
        place += max(length, 1)
    return words, tuple(found)


@given(marked())
def test_marks_become_tags_and_marks_again(given: tuple[list[str], tuple[Mark, ...]]) -> None:
    words, found = given
    text, spans = marks.placed(words, " ")
    assert [text[start:end] for start, end in spans] == words
    tags = marks.iob(spans, found)
    assert marks.marks(spans, tags, "before") == found
    assert marks.style(tags) == "before"


def test_a_word_that_a_mark_only_touches_has_its_tag() -> None:
    assert marks.iob([(0, 4), (5, 9), (9, 9)], [Mark("A", 2, 6)]) == ["B-A", "I-A", "O"]
    assert marks.iob([(0, 4), (5, 9)], [Mark("A", 4, 5)]) == ["O", "O"]


def test_names_without_letters() -> None:
    tags = ["PER", "PER", "E-mail", "O"]
    assert marks.style(tags) == "bare"
    assert marks.marks(SPANS[:4], tags, "bare") == (Mark("PER", 0, 5), Mark("E-mail", 6, 8))
    assert marks.style(["O", "O"]) == "before", "which they then have to follow"
    assert marks.style(["E-mail", "A-B"]) == "bare"


@pytest.mark.parametrize(("tag", "how"), [("PER", "before"), ("", "before"), ("B-", "before"), ("X-PER", "before"), ("PER-X", "after"), ("", "bare")])
def test_tags_that_say_too_little(tag: str, how: marks.Style) -> None:
    with pytest.raises(UserError, match=f"^line 3 has the tag '{tag}', which does not say whether a mark begins or goes on; write it as B-"):
        marks.check(tag, how, "line 3")
    with pytest.raises(UserError, match="line 3 has the tag"):
        marks.tagged([tag], [(0, 1)], how, "line 3")


def test_as_many_tags_as_words() -> None:
    with pytest.raises(UserError, match="line 3 has 2 words and 1 tags; give each word one"):
        marks.tagged(["O"], SPANS[:2], "before", "line 3")


def test_marks_are_put_in_order() -> None:
    assert marks.listed([[3, 5, "B"], [0, 2, "A"], [2, 3, "A"]], "abcde", "line 1", "spans") == (Mark("A", 0, 2), Mark("A", 2, 3), Mark("B", 3, 5))
