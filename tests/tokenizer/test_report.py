"""Figures that can be counted by hand; scripts; the same for another vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from unmask.errors import UserError
from unmask.tokenizer import Tokenizer
from unmask.tokenizer.learn import learn
from unmask.tokenizer.report import Rates, Report, load, measure, script

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def tokenizer(*pieces: str, **settings: bool) -> Tokenizer:
    return Tokenizer.from_vocabulary({piece: number for number, piece in enumerate([*SPECIALS, *pieces])}, {"strip_accents": False, **settings})


def test_figures_counted_by_hand() -> None:
    made = tokenizer("cat", "c", "##a", "##t", "##s", ",", "가", "##나", "7")
    chunks = {"cat": 5, "cats,": 2, "dog": 1, "가나": 3, "7": 1, "": 4, "\ud800cat": 1}
    found = measure(made, chunks.items())
    # cat 6 times whole, cats 2 in two pieces, a comma twice, dog unknown, 가나 thrice in two pieces, 7 once.
    assert found.all == Rates(words=15, unknown=round(1 / 20, 6), pieces_per_word=round(20 / 15, 4), whole=round(9 / 15, 4))
    assert {name: (one.words, one.pieces_per_word, one.unknown) for name, one in found.scripts.items()} == {
        "Latin": (9, round(11 / 9, 4), round(1 / 11, 6)),
        "Hangul": (3, 2.0, 0.0),
        "marks": (2, 1.0, 0.0),
        "numbers": (1, 1.0, 0.0),
    }
    assert list(found.scripts) == ["Latin", "Hangul", "marks", "numbers"], "the most words first"
    assert found.entries == 14
    assert found.unused == 3  # c, ##a, ##t
    assert found.longest[:2] == ("cat", "##a")
    assert found.rarest == (("cat", 8),)


def test_the_rarest_by_evidence() -> None:
    made = tokenizer("a", "##b", "ab", "abc")
    assert measure(made, [("ab", 1)], {"ab": 7, "abc": 3}).rarest == (("abc", 3), ("ab", 7))


def test_jamo_are_parts_of_syllables_and_not_letters_typed_alone() -> None:
    assert measure(tokenizer("ㅋㅋ", "가", "\u1100", "##\u11a8", "\ud7b0"), []).jamo == 3


def test_no_words_at_all() -> None:
    found = measure(tokenizer("a"), [])
    assert found.all == Rates(0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("letter", "name"),
    [
        ("a", "Latin"),
        ("é", "Latin"),
        ("가", "Hangul"),
        ("ㅋ", "Hangul"),
        ("漢", "Han"),
        ("の", "Hiragana"),
        ("カ", "Katakana"),
        ("я", "Cyrillic"),
        ("7", "numbers"),
        (".", "marks"),
        ("▁", "marks"),
        ("ا", "Arabic"),
    ],
)
def test_scripts(letter: str, name: str) -> None:
    assert script(letter) == name


def test_the_report_of_what_was_learned(tmp_path: Path) -> None:
    texts = [f"the cat number {number} sat on the mat and saw {number % 7} dogs" for number in range(3000)]
    other = tokenizer("the", "cat")
    report = learn(texts, 120, against=other).report
    assert report.other is not None
    assert report.own.all.unknown == 0 < report.other.all.unknown
    assert report.own.all.words == report.other.all.words
    assert report.note == f"measured on {report.made['held_texts']} texts that were not learned from"
    assert json.loads(json.dumps(report.json()))["own"]["all"]["whole"] == report.own.all.whole
    console = Console(width=120, record=True)
    console.print(report.table())
    printed = console.export_text()
    for line in ("unknown", "pieces a word", "words kept whole", "Latin", "the other", report.note):
        assert line in printed


def test_where_nothing_was_held() -> None:
    report = learn(["one text alone " * 50], 26).report
    assert report.made["held_texts"] == 0
    assert report.note == "measured on the text that was learned from, as no text could be held back"
    assert report.own.all.words == 150
    assert Report(report.made, report.own) == report


def test_entries_that_look_like_markup_are_printed_as_they_are() -> None:
    found = measure(tokenizer("[b]x", "[/b]"), [])
    console = Console(width=120, record=True)
    console.print(Report({}, found).table())
    assert "[/b]" in console.export_text()


@pytest.mark.parametrize(("share", "told"), [(1.0, None), (0.9551, "95.5% of the words"), (0.999999, "99.9% of the words")])
def test_what_was_not_learned_from_is_said(share: float, told: str | None) -> None:
    console = Console(width=120, record=True)
    console.print(Report({"learned_share": share}, measure(tokenizer("a"), []), measure(tokenizer("b"), [])).table())
    printed = console.export_text()
    assert ("learned from  " in printed) == (told is not None)
    assert told is None or told in printed


def test_another_vocabulary_of_any_form(tmp_path: Path, minilm: Path) -> None:
    assert load(minilm).size == load(minilm / "vocab.txt").size == 30_522
    (tmp_path / "uncased.txt").write_text("\n".join([*SPECIALS, "naive", "##s"]))
    (tmp_path / "cased.txt").write_text("\n".join([*SPECIALS, "Naive", "##s"]))
    (tmp_path / "korean.txt").write_text("\n".join([*SPECIALS, "학교", "x"]), encoding="utf-8")
    assert [one.tokens[1:-1] for one in load(tmp_path / "uncased.txt").encode(["Naïves"], offsets=True)] == [["naive", "##s"]]
    assert [one.tokens[1:-1] for one in load(tmp_path / "cased.txt").encode(["Naives naive"], offsets=True)] == [["Naive", "##s", "[UNK]"]]
    assert [one.tokens[1:-1] for one in load(tmp_path / "korean.txt").encode(["학교 X"], offsets=True)] == [["학교", "x"]]
    with pytest.raises(UserError, match=r"there is no vocabulary .*none.txt; give a vocab.txt or the folder of a tokenizer"):
        load(tmp_path / "none.txt")
