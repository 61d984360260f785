"""Tables: which column holds the text, quotation marks that wrap cells and those that do not, and where a row is wrong."""

from __future__ import annotations

import pytest

from unmask.data import records
from unmask.errors import UserError


@pytest.mark.parametrize(
    ("names", "column", "found"),
    [
        (["id", "Text", "label"], None, "Text"),
        (["title", "content", "text"], None, "text"),
        (["label", "sentence2", "sentence1"], None, "sentence1,sentence2"),
        (["anything"], None, "anything"),
        (["a", "b"], "b", "b"),
        (["a", "b"], "b,a", "b,a"),
        (["a,b", "c"], "a,b", "a,b"),
    ],
)
def test_the_column_of_the_text(names: list[str], column: str | None, found: str) -> None:
    assert records.choose(names, column, "x") == found


def test_a_column_that_is_not_there() -> None:
    with pytest.raises(UserError, match="x has no column 'reveiw', did you mean review"):
        records.choose(["id", "review"], "reveiw", "x")
    with pytest.raises(UserError, match="x has no column named text; say which holds it with --column: id, good, bad"):
        records.choose(["id", "good", "bad"], None, "x")


def test_cells_of_text() -> None:
    assert records.joined(["a", None, "b"]) == "a\n\nb"
    assert records.joined([["first", "second"]]) == "first\nsecond"
    assert records.joined([3]) is None
    assert records.joined([["a", 3]]) is None


def test_quotation_marks_that_wrap() -> None:
    assert records.quoted('"a ""b"" c"\t1\n"d"\t2\n', "\t")
    assert not records.quoted('" the witness " , he said\t1\n"stray\t2\n', "\t")
    assert not records.quoted("a\t1\n", "\t")


def test_a_table_with_wrapped_cells() -> None:
    lines = ["id,text\n", '1,"one, ""two""\n', 'three"\n', "\n", "2,four\n"]
    rows = records.table_rows(records.table(lines, ",", True, "x"), ["text"], True, "x")
    assert list(rows) == [(3, ['one, "two"\nthree']), (5, ["four"])]
    assert records.delimiter("a;b;c,d\n") == ";"


def test_stray_quotation_marks_swallow_nothing() -> None:
    rows = records.table_rows(records.table(['"best\t1\n', 'film"\t0\n'], "\t", False, "x"), ["1"], False, "x")
    assert [values for _, values in rows] == [['"best'], ['film"']]


def test_rows_that_are_wrong() -> None:
    with pytest.raises(UserError, match="line 3 of x has 1 columns, too few for text"):
        list(records.table_rows(records.table(["id,text\n", "1,a\n", "2\n"], ",", True, "x"), ["text"], True, "x"))
    with pytest.raises(UserError, match="line 2 of x is not well quoted"):
        list(records.table(["text\n", '"never closed\n'], ",", True, "x"))


def test_a_cell_longer_than_csv_allows_by_itself() -> None:
    long = "a" * 500_000
    assert list(records.table([f"text,{long}\n"], ",", True, "x")) == [(1, ["text", long])]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 3 of x is not JSON"),
        ("[1]", "neither a JSON object nor a string"),
        ('{"body": ""}', "line 3 of x has no field 'text'"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_objects_that_are_none(line: str, says: str) -> None:
    rows = records.json_rows(['{"text": "a"}', "", line], ["text"], "x")
    assert next(rows) == (1, ["a"])
    with pytest.raises(UserError, match=says):
        next(rows)


def test_fields_that_hold_text() -> None:
    assert records.json_fields(["", '{"id": 3, "none": null, "text": "a", "lines": ["a"]}'], "x") == (["text", "lines"], ["none"])
    assert records.json_fields(['"a string"'], "x") == ([], [])
    lines = ["{}", '{"a": null, "b": "x", "c": null, "d": 1}', '"a string"', '{"a": "y", "b": 3, "c": null, "d": null, "e": "z"}']
    assert records.json_fields(lines, "x") == (["a", "e"], ["b", "c"]), "what the first lines hold together"


def test_only_the_first_objects_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LOOKED", 2)
    assert records.json_fields(['{"a": "x"}', "", '{"b": "x"}', "not JSON"], "x") == (["a", "b"], [])
    assert records.json_fields(['{"a": "%s"}' % ("x" * (1 << 20)), "not JSON"], "x") == (["a"], [])


def test_doubtful_fields_come_after_those_that_hold_text() -> None:
    assert records.choose(["body"], None, "x", ["text"]) == "body"
    assert records.choose(["title"], None, "x", ["text"]) == "text", "rather than the only other one, without a word"
    assert records.choose(["premise"], None, "x", ["hypothesis"]) == "premise,hypothesis"
    assert records.choose(["title"], "late", "x", ["late"]) == "late"


def test_a_field_may_come_late() -> None:
    lines = ["{}", '{"title": "x"}', '{"title": "x"}', '{"text": "a"}', "{}", '{"title": "x"}']
    rows = records.json_rows(lines, ["text"], "x", ["text"])
    with pytest.warns(UserWarning, match="line 2 of x has no field 'text'; it is empty in every line before the first that has one") as caught:
        assert [next(rows) for _ in range(5)] == [(1, [None]), (2, [None]), (3, [None]), (4, ["a"]), (5, [None])]
    assert len(caught) == 1
    with pytest.raises(UserError, match="line 6 of x has no field 'text'"):
        next(rows)
