"""What is typed after a command: every way to give texts and pictures, and the sentence where nothing can be made of it."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from unmask.data.inputs import read_inputs
from unmask.errors import UserError


def read(*words: Any, pair: str | None = None) -> list[Any]:
    return list(read_inputs([str(word) for word in words], pair))


def said(*words: Any, pair: str | None = None) -> str:
    with pytest.raises(UserError) as caught:
        read(*words, pair=pair)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    (tmp_path / "texts.txt").write_text("first\nsecond\tits pair\n\n  last  ", encoding="utf-8")
    return tmp_path / "texts.txt"


def test_words_are_texts_and_a_tab_makes_a_pair() -> None:
    assert read("one text", "a\tb", "a\tb\tc", "", "고양이") == ["one text", ("a", "b"), ("a", "b\tc"), "", "고양이"]
    assert read("x" * 100_000) == ["x" * 100_000], "too long for the name of a file"
    assert read("a\0b") == ["a\0b"]


def test_a_file_is_a_text_a_line(texts: Path) -> None:
    assert read(texts) == ["first", ("second", "its pair"), "", "  last  "]
    assert read("before", texts, "after")[0::5] == ["before", "after"]


def test_lines_of_other_systems(tmp_path: Path) -> None:
    path = tmp_path / "windows.txt"
    path.write_bytes(b"\xef\xbb\xbffirst\r\nsecond\r\n\xe2\x80\xa8third\x0bstill\n")
    assert read(path) == ["first", "second", "\u2028third\x0bstill"]


def test_objects(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    lines = ['{"text": "a", "label": 1}', '{"premise": "a", "hypothesis": "b"}', "", '"c"', '{"question": "q", "context": "x\\ty"}', '{"text": "a\\tb"}']
    path.write_text("\n".join(lines))
    assert read(path) == ["a", ("a", "b"), "c", ("q", "x\ty"), "a\tb"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2 of"),
        ("3", "neither a JSON object nor a string"),
        ("[1]", "neither"),
        ('{"body": "x"}', "has no text; name it text"),
        ('{"text": 3}', "has no text"),
        ("[" * 100_000, "is not JSON"),
    ],
)
@pytest.mark.parametrize("suffix", [".jsonl", ".JSONL", ".ndjson", ".json"])
def test_objects_that_are_none(tmp_path: Path, line: str, says: str, suffix: str) -> None:
    path = tmp_path / f"data{suffix}"
    path.write_text('{"text": "good"}\n' + line)
    message = said(path)
    assert says in message
    assert "line 2 of" in message
    assert str(path) in message


@pytest.mark.parametrize("word", ["none.txt", "none.jsonl", "dir/none.tsv", "none.csv", "none.JPG", "none.png"])
def test_a_missing_file_is_no_text(word: str) -> None:
    assert said(word) == f"there is no file {word}"
    assert said("a text", pair=word) == f"there is no file {word}"


@pytest.mark.parametrize("word", ["and/or", "He left at 3.30", "e.g. this", "look at none.txt please", "v2.0", "...", "."[:0]])
def test_texts_that_look_a_little_like_files(word: str) -> None:
    assert read(word) == [word]


@pytest.mark.parametrize("name", ["empty.txt", "empty.jsonl"])
def test_an_empty_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    assert said(tmp_path / name) == f"{tmp_path / name} is empty; give texts, one a line"


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"good\n" + "café".encode("latin-1"))
    message = said(path)
    assert str(path) in message
    assert "not UTF-8" in message
    assert "latin.txt is not UTF-8" in said("a text", pair=str(path))


def test_a_file_that_may_not_be_read(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shut(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", shut)
    monkeypatch.setattr(Path, "read_text", shut)
    assert said(texts) == f"{texts} cannot be read (Permission denied); give a file that can"
    assert "Permission denied" in said("a text", pair=str(texts))


def test_pictures(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "folder.png").mkdir()
    names = ["b.jpg", "a.PNG", "below/c.webp"]
    for name in [*names, "notes.txt"]:
        (tmp_path / name).write_bytes(b"")
    assert read(tmp_path) == [tmp_path / "a.PNG", tmp_path / "b.jpg", tmp_path / "below" / "c.webp"]
    assert read(tmp_path / "b.jpg", "a text") == [tmp_path / "b.jpg", "a text"]
    (tmp_path / "below" / "c.webp").unlink()
    assert said(tmp_path / "below") == f"the folder {tmp_path / 'below'} holds no pictures; give a folder that does, or files of texts"


def test_a_second_text_for_all(texts: Path, tmp_path: Path) -> None:
    assert read("one", "two", pair="context") == [("one", "context"), ("two", "context")]
    (tmp_path / "context.txt").write_text("한 줄\nand another", encoding="utf-8")
    assert read("one", pair=str(tmp_path / "context.txt")) == [("one", "한 줄\nand another")]
    assert "leave --pair out" in said(texts, pair="context")
    (tmp_path / "x.png").write_bytes(b"")
    assert "leave --pair out" in said(tmp_path / "x.png", pair="context")


class Piped(io.TextIOWrapper):
    def __init__(self, content: bytes, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(content), encoding="latin-1")  # as a locale may have it
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize("words", [[], ["-"]])
def test_standard_input(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setattr(sys, "stdin", Piped("고양이\na\tb\n".encode()))
    assert read(*words) == ["고양이", ("a", "b")]
    monkeypatch.setattr(sys, "stdin", Piped(b"good\n\xff"))
    assert said(*words).startswith("standard input is not UTF-8")
    monkeypatch.setattr(sys, "stdin", Piped(b""))
    assert said(*words) == "standard input is empty; give texts, one a line"
    monkeypatch.setattr(sys, "stdin", Piped(b"", terminal=True))
    assert said(*words).startswith("nothing to read")


def test_a_long_file_is_read_as_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("a line\n" * 100_000)
    inputs = read_inputs([str(path)])
    assert [next(inputs) for _ in range(3)] == ["a line"] * 3
    inputs.close()  # type: ignore[attr-defined]
