"""Rows that know their names: headers that are there or not, JSON that is longer than what is held of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unmask.data import corpus, tables
from unmask.data.columns import USUAL
from unmask.data.tables import Table, looked, opened, value
from unmask.errors import UserError


def table(path: Path, content: str, *columns: str) -> Table:
    path.write_text(content, encoding="utf-8")
    return opened(*looked(str(path)), columns, USUAL)


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("text,label\ntext,label\n", ("text", "label")),
        ("a,b\nc,d\n", ("a", "b")),
        ("fine film,pos\nbad film,neg\nother,pos\n", ("1", "2")),
        ("0,1\nx,y\n", ("0", "1")),
        ("Some  Text,LABEL\nx,y\nSome  Text,z\n", ("Some  Text", "LABEL")),
    ],
)
def test_whether_the_first_row_is_a_header(tmp_path: Path, content: str, names: tuple[str, ...]) -> None:
    found = table(tmp_path / "a.csv", content)
    assert found.names == names
    assert len(list(found.rows())) == content.count("\n") - (names[0] != "1")


def test_columns_that_are_named_say_whether(tmp_path: Path) -> None:
    assert table(tmp_path / "a.csv", "x,y\nx,z\n", "y").names == ("x", "y")
    assert table(tmp_path / "a.csv", "x,y\na,z\n", "2").names == ("1", "2")
    assert table(tmp_path / "a.csv", "1,2\na,z\n", "2").names == ("1", "2")
    assert list(table(tmp_path / "a.csv", "1,2\na,z\n", "2").rows()) == [(2, {"1": "a", "2": "z"})]


def test_empty_cells_beyond_the_last_column_are_nothing(tmp_path: Path) -> None:
    assert list(table(tmp_path / "a.csv", "text,label\na,x,,\n").rows()) == [(2, {"text": "a", "label": "x"})]


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.json", '[{"a": 1}]', "json"),
        ("a.jsonl", '\n [{"a": 1}]', "json"),
        ("a.json", '{"version": "1", "data": [{"a": 1}]}', "json"),
        ("a.jsonl", '{"data": [1]}\n', "jsonl"),
        ("a.json", '{"a": 1}\n{"a": 2}\n', "jsonl"),
        ("a.txt", '{"a": 1}\n', "jsonl"),
        ("a.txt", "a\tb\nc\td\n", "tsv"),
        ("a.txt", "a\tb\nc\nd\te\n", "text"),
        ("a.csv", "[a],b\n", "csv"),
    ],
)
def test_what_a_file_is(tmp_path: Path, name: str, content: str, kind: str) -> None:
    (tmp_path / name).write_text(content)
    assert looked(str(tmp_path / name))[0].kind == kind


@pytest.mark.parametrize("size", [1, 7, 64, 1 << 20])
def test_a_list_is_parsed_piece_by_piece(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": f'a "{number}" \\ ] }}, é' * (number % 5), "deep": {"list": [number, None, 1.5]}} for number in range(40)]
    path = tmp_path / "a.json"
    for content in (json.dumps(rows), json.dumps({"version": "x", "data": rows, "more": [1]}, indent=2)):
        path.write_text(content)
        source, _ = looked(str(path))
        monkeypatch.setattr(corpus, "HEAD", max(size, 64))  # what stands before the list must fit into one
        found = [row for _, row in Table(source, ()).rows()]
        monkeypatch.undo()
        assert found == rows


def test_a_fault_in_a_list_is_told_without_reading_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text("[" + '{"a": 1}, ' * 50 + '{"a" 2}, ' + '{"a": 1}, ' * 5_000 + "{}]")
    source, _ = looked(str(path))
    monkeypatch.setattr(corpus, "HEAD", 2_000)
    read = []
    blocks = corpus.blocks
    monkeypatch.setattr(corpus, "blocks", lambda source: (read.append(block) or block for block in blocks(source)))
    with pytest.raises(UserError, match=f"item 51 of {path} is not JSON .*; write it anew, or one object a line as .jsonl"):
        list(Table(source, ()).rows())
    assert len(read) == 1


def test_the_first_rows_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = table(tmp_path / "a.csv", "text,label\n" + "some text,x\n" * 2_000)
    assert len(found.sample) == tables.BOUND
    monkeypatch.setattr(tables, "LETTERS", 100)
    assert len(Table(found.source, found.names).sample) == 11


def test_fields_of_objects() -> None:
    row = {"a": {"b": {"c": 1}}, "a.d": 2, "e": 3}
    assert [value(row, name) for name in ("a.b.c", "a.d", "a.x", "e.f", "x")] == [1, 2, None, None, None]


def test_names_are_compared_as_people_write_them() -> None:
    assert {tables.plain(name) for name in ("Gold Label", " gold_label", "gold-label")} == {"gold_label"}
