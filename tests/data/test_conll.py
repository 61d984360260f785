"""A word and its tag a line, as the sets that people have write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.data import conll
from unmask.data.marks import Mark
from unmask.data.tables import looked
from unmask.errors import UserError


def sentences(path: Path, content: str, **options: bool) -> list[tuple[int, str, tuple[Mark, ...]]]:
    path.write_text(content, encoding="utf-8")
    source, _ = looked(str(path))
    return list(conll.sentences(source, conll.shape(source, {}, **options)))


def test_hashes_that_are_words_and_those_that_are_not(tmp_path: Path) -> None:
    content = "# sent_id = 1\n#NFL\tO\n#\tO\nSeoul\tB-LOC\n\n# text = #a\tb\n#a\tB-LOC\n"
    assert sentences(tmp_path / "a", content) == [(2, "#NFL # Seoul", (Mark("LOC", 7, 12),)), (7, "#a", (Mark("LOC", 0, 2),))]


def test_a_word_may_be_a_space_that_is_not_between_columns(tmp_path: Path) -> None:
    assert sentences(tmp_path / "a", "a\u00a0b B-X\n\u00a0 O\n") == [(1, "a\u00a0b \u00a0", (Mark("X", 0, 3),))]


def test_letters_a_line(tmp_path: Path) -> None:
    """As KLUE has them, with spaces among them, and others with _ for a space; Chinese sets have none."""
    text, tags = "서울 에서 만난 그 사람은 부산 사람이었다고", {0: "B-LC", 1: "I-LC", 14: "B-LC", 15: "I-LC"}
    for space in " _":
        lines = "".join(f"{space if letter == ' ' else letter}\t{tags.get(place, 'O')}\n" for place, letter in enumerate(text))
        assert sentences(tmp_path / "a", f"## klue-1\t<서울:LC>에서\n{lines}\n") == [(2, text, (Mark("LC", 0, 2), Mark("LC", 14, 16)))]
    path = tmp_path / "a"
    source, _ = looked(str(path))
    assert conll.said(conll.shape(source, {})) == "letters from column 1, tags such as B-X from column 2"


def test_words_with_their_numbers_before_them(tmp_path: Path) -> None:
    assert sentences(tmp_path / "a", "1\t김구는\tPER_B\n2\t갔다\t-\n\n1\t서울\tLOC_B\n2\t역\tLOC_I\n") == [
        (1, "김구는 갔다", (Mark("PER", 0, 3),)),
        (4, "서울 역", (Mark("LOC", 0, 4),)),
    ]
    ud = "# text = vámonos\n1-2\tvámonos\t_\t_\n1\tvamos\tVERB\tV\n2\tnos\tPRON\tP\n2.1\tya\tADV\tA\n"
    assert sentences(tmp_path / "a", ud) == [(3, "vamos nos", (Mark("V", 0, 5), Mark("P", 6, 9)))]


def test_parts_of_speech_go_with_one_word_each(tmp_path: Path) -> None:
    assert sentences(tmp_path / "a", "a DT\nb NN\nc NN\n") == [(1, "a b c", (Mark("DT", 0, 1), Mark("NN", 2, 3), Mark("NN", 4, 5)))]
    assert sentences(tmp_path / "a", "a O\nb PER\nc PER\n") == [(1, "a b c", (Mark("PER", 2, 5),))]


def test_columns_are_named_by_number(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("B-X a junk\nI-X b junk\n")
    source, _ = looked(str(tmp_path / "a"))
    shape = conll.shape(source, {"text": "2", "label": "1"})
    assert list(conll.sentences(source, shape)) == [(1, "a b", (Mark("X", 0, 3),))]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a B-X\nb\nc O\n", "line 2 of {path} has 1 columns between spaces where other lines have 2; give each word a line with its tag"),
        ("a\tB-X\nb c\tO\td\nc\tO\n", "line 2 of {path} has 3 columns between tabs where other lines have 2; give each word a line with its tag"),
        ("a B-X\nb X\n", "line 2 of {path} has the tag 'X', which does not say whether a mark begins or goes on; write it as B-X or I-X, or O"),
        ("a\tB-X\nb\t\n", "line 2 of {path} has the tag '', which does not say whether a mark begins or goes on; write it as B-X or I-X, or O"),
        ("a\tB-X\n\tO\n", "line 2 of {path} has no word before its tag; write one, or take the line out"),
        ("a\nb\n", "{path} has no line with a word and its tag; separate the two with a tab or a space, or say --layout"),
    ],
)
def test_lines_that_are_wrong(tmp_path: Path, content: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        sentences(tmp_path / "a", content)
    assert str(caught.value) == says.format(path=tmp_path / "a")


def test_a_tag_without_a_mark_is_wrong_even_after_many_that_mark_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"line 6001 of .* has the tag 'X'"):
        sentences(tmp_path / "a", "a O\n" * 6_000 + "b X\n")


def test_what_has_no_tags_may_be_read_without(tmp_path: Path) -> None:
    assert sentences(tmp_path / "a", "a\nb\n\nc\n", unlabelled=True) == [(1, "a b", ()), (4, "c", ())]
    assert sentences(tmp_path / "a", "\n\na\n\n", unlabelled=True) == [(3, "a", ())]
    assert sentences(tmp_path / "a", "a X\nb B-X\n", unlabelled=True) == [(1, "a b", ())]


def test_lines_that_are_likely_words() -> None:
    assert conll.likely(["-DOCSTART-", "", "a NN O", "b NN B-X"])
    assert not conll.likely(["Angela spoke", "Seoul is large"])
    assert not conll.likely(["one", "a O"])
    assert not conll.likely([])
