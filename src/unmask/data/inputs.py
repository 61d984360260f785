"""What is typed after a command: texts, pictures, files of either, or standard input."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from unmask.data.images import SUFFIXES
from unmask.errors import UserError

Given = str | tuple[str, str] | Path
FIRST = ("text", "question", "sentence1", "premise", "document")
LISTS = {".jsonl", ".ndjson", ".json"}  # an object a line
MISSED = {*SUFFIXES, *LISTS, ".txt", ".tsv", ".csv"}  # who types a word that ends so means a file
SECOND = ("pair", "context", "sentence2", "hypothesis")


def read_inputs(words: Sequence[str], pair: str | None = None, *, pairs: bool = True) -> Iterator[Given]:
    """Each word is a text, a picture, a folder of pictures, or a file of texts: .jsonl an object a line, else a text a line.

    A line with a tab is a pair, unless `pairs` is false. With `pair`, that text (or what the file of that name holds) is the second of every input.
    """
    second = None if pair is None else _second(pair)
    for given in _given(words, pairs):
        if second is None:
            yield given
        elif isinstance(given, str):
            yield given, second
        else:
            raise UserError("--pair gives every input its second text, but one has a second already or is a picture; leave --pair out")


def _given(words: Sequence[str], pairs: bool) -> Iterator[Given]:
    if not words or list(words) == ["-"]:
        yield from _standard_input(pairs)
        return
    for word in words:
        path = Path(word)
        if not _exists(word):
            yield _line(word, pairs)
        elif path.is_dir():
            pictures = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
            if not pictures:
                raise UserError(f"the folder {word} holds no pictures; give a folder that does, or files of texts")
            yield from pictures
        elif path.suffix.lower() in SUFFIXES:
            yield path
        else:
            yield from _file(path, pairs)


def _standard_input(pairs: bool) -> Iterator[Given]:
    if sys.stdin.isatty():
        raise UserError("nothing to read: give texts or files, or pipe text in")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")  # whatever the locale is
    yield from _lines(sys.stdin, "standard input", pairs, jsonl=False)


def _file(path: Path, pairs: bool) -> Iterator[Given]:
    try:
        with path.open(encoding="utf-8") as file:
            yield from _lines(file, str(path), pairs, jsonl=path.suffix.lower() in LISTS)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); give a file that can") from None


def _exists(word: str) -> bool:
    """Whether it is a file or folder; a word that can only be the name of one, and is not, is refused."""
    path = Path(word)
    try:
        there = bool(word) and path.exists()  # Path("") is the folder one stands in
    except (OSError, ValueError):  # a text too long for a name, or with a NUL in it
        return False
    if not there and path.suffix.lower() in MISSED and len(word.split()) == 1:
        raise UserError(f"there is no file {word}")
    return there


def _lines(file: TextIO, name: str, pairs: bool, *, jsonl: bool) -> Iterator[Given]:
    number = 0
    try:
        for number, line in enumerate(file, 1):
            line = line.rstrip("\n").removeprefix("\ufeff")
            if jsonl and line.strip():
                yield _object(line, name, number)
            elif not jsonl:
                yield _line(line, pairs)
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8 (after line {number}, byte {error.start}); save it as UTF-8") from None
    if not number:
        raise UserError(f"{name} is empty; give texts, one a line")


def _line(text: str, pairs: bool) -> Given:
    first, tab, second = text.partition("\t")
    return (first, second) if tab and pairs else text


def _object(line: str, name: str, number: int) -> Given:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"line {number} of {name} is not JSON ({error})") from None
    if isinstance(found, str):
        return found
    if not isinstance(found, dict):
        raise UserError(f"line {number} of {name} is neither a JSON object nor a string")
    first = next((found[key] for key in FIRST if isinstance(found.get(key), str)), None)
    second = next((found[key] for key in SECOND if isinstance(found.get(key), str)), None)
    if first is None:
        raise UserError(f"line {number} of {name} has no text; name it {', '.join(FIRST)}")
    return first if second is None else (first, second)


def _second(pair: str) -> str:
    path = Path(pair)
    if not _exists(pair) or path.is_dir():
        return pair
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{pair} is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{pair} cannot be read ({error.strerror}); give a file that can") from None
