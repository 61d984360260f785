"""Which column is what, of tables as they are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unmask.data.columns import USUAL, Columns, chosen
from unmask.data.tables import looked, opened
from unmask.errors import UserError


def columns(place: Path, kind: str, row: dict[str, Any], named: dict[str, str] | None = None, unlabelled: bool = False) -> Columns:
    path = place / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for _ in range(2)))
    return chosen(opened(*looked(str(path)), (), USUAL), kind, named or {}, unlabelled)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"label": 1, "title": "A", "content": "B"}, Columns("content", label="label")),
        ({"Class Index": 1, "Title": "A", "Description": "B"}, Columns("Description", label="Class Index")),
        ({"text": "A", "label": 0, "score": 0.5, "topic": "x"}, Columns("text", label="label")),
        ({"idx": 1, "premise": "A", "hypothesis": "B", "label": 0}, Columns("premise", "hypothesis", label="label", id="idx")),
        ({"guid": "x", "title": "A", "label": 3, "url": "http"}, Columns("title", label="label", id="guid")),
        ({"tweet": "A", "class": "x"}, Columns("tweet", label="class")),
        ({"sentence": "A", "text": "B", "target": 0}, Columns("text", label="target")),
        ({"question": "A", "sentence": "B", "label": 0}, Columns("question", "sentence", label="label")),
        ({"": 0, "what was written down at length": "A long one", "gold-label": "x"}, Columns("what was written down at length", label="gold-label", id="")),
    ],
)
def test_usual_names(tmp_path: Path, row: dict[str, Any], expected: Columns) -> None:
    assert columns(tmp_path, "classify", row) == expected


def test_what_is_named_stays_and_the_rest_goes_around_it(tmp_path: Path) -> None:
    row = {"sentence1": "A", "sentence2": "B", "label": 0, "score": 0.5}
    assert columns(tmp_path, "classify", row, {"label": "score"}) == Columns("sentence1", "sentence2", label="score")
    assert columns(tmp_path, "classify", row, {"text": "label"}) == Columns("label", label="score")
    assert columns(tmp_path, "embed", row) == Columns("sentence1", "sentence2", label="score")
    assert columns(tmp_path, "embed", row, {"label": "label"}) == Columns("sentence1", "sentence2", label="label")
    assert columns(tmp_path, "embed", {"text": "A", "notes": "A long remark on it."}) == Columns("text")
    assert columns(tmp_path, "embed", row, unlabelled=True) == Columns("sentence1", "sentence2")


def test_where_there_are_no_labels_none_is_read(tmp_path: Path) -> None:
    row = {"note": "A", "remark": "It was a long way down."}
    assert columns(tmp_path, "classify", row, {"label": "verdict"}, unlabelled=True) == Columns("remark")
    assert columns(tmp_path, "classify", row, {"label": "remark"}, unlabelled=True) == Columns("note")


def test_a_long_column_is_the_text_where_none_comes_near_it(tmp_path: Path) -> None:
    row = {"who": "Ann", "remark": "It was a long way down.", "label": 0, "at": "2020"}
    assert columns(tmp_path, "classify", row).text == "remark"
    with pytest.raises(UserError, match="several columns that may be the text; say which with --text NAME, of a pair also --second NAME: remark, who"):
        columns(tmp_path, "classify", {**row, "who": "Ann Elizabeth Miller"})


def test_labels_without_a_usual_name_recur(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = [f"remark number {number},{number},{'ab'[number % 2]},{'' if number % 4 else 'x'},same\n" for number in range(8)]
    path.write_text("remark,n,verdict,gaps,constant\n" + "".join(rows))
    assert chosen(opened(*looked(str(path))), "classify", {}).label == "verdict"
    path.write_text("remark,verdict\nIt was long,a\nIt was short,b\nIt was not,a\n")
    assert chosen(opened(*looked(str(path))), "classify", {}).label == "verdict", "of three"
    path.write_text("remark,verdict,other\n" + "".join(f"remark number {number},{'ab'[number % 2]},{number // 4}\n" for number in range(8)))
    with pytest.raises(UserError, match="several columns that may be the label; say which with --label NAME: verdict, other"):
        chosen(opened(*looked(str(path))), "classify", {})


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"text": "A", "notes": "A long remark on it.", "entities": [[0, 1, "X"]], "tokens": ["A"]}, Columns("text", label="entities")),
        ({"text": "A", "ner_tags": ["O"], "tokens": ["A"]}, Columns("tokens", label="ner_tags")),
        ({"tokens": ["A"], "spans": []}, Columns("tokens", label="spans")),
        ({"remark": "A", "spans": []}, Columns("remark", label="spans")),
    ],
)
def test_marks_of_texts_and_tags_of_words(tmp_path: Path, row: dict[str, Any], expected: Columns) -> None:
    assert columns(tmp_path, "tagging", row) == expected


def test_names_that_are_texts_are_cut(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"say which holds them with --label NAME: a, b c\.\.\.$"):
        columns(tmp_path, "classify", {"text": "A", "a": 1, "b\nc " + "d" * 99: 2})


def test_choices_by_number_and_letter(tmp_path: Path) -> None:
    row = {"question": "?", "answerB": "b", "answerA": "a", "label": "1"}
    assert columns(tmp_path, "choice", row).choices == ("answerA", "answerB")
    row = {"question": "?", "a": "x", "answer": "d", "D": "x", "b": "x", "c": "x"}
    assert columns(tmp_path, "choice", row).choices == ("a", "b", "c", "D")
    row = {"question": "?", "options": ["x", "y"], "choices": ["x", "y"], "label": 0}
    assert columns(tmp_path, "choice", row).choices == ("choices",)
    row = {"question": "?", "no": "x", "yes": "y", "answer": 0}
    assert columns(tmp_path, "choice", row, {"choices": "yes,no"}) == Columns("question", label="answer", choices=("yes", "no"))
    with pytest.raises(UserError, match="has no column that says which choice is right; say which does with --label NAME: question, right"):
        columns(tmp_path, "choice", {"question": "?", "A": "x", "B": "y", "right": 0})


def test_what_is_read_of_a_parquet_file() -> None:
    assert set(Columns("text", label="labels.real", choices=("a", "b")).all()) == {"text", "labels.real", "labels", "a", "b"}


def test_what_is_said() -> None:
    assert Columns("a").said("embed") == "the text from column a; --text chooses another"
    assert Columns("a", "b", label="c").said("classify", "one of 2") == (
        "the text from column a, the second text from column b, the label from column c (one of 2); --text, --second and --label choose others"
    )
