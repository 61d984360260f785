"""Files of CoNLL's kind: a word and its tag a line, a blank line after each sentence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from unmask.data import corpus, marks, places
from unmask.data.corpus import Source
from unmask.data.marks import Mark, Style
from unmask.errors import UserError

BOUND = 5_000  # lines that are looked at before a file is read
ENOUGH = 20  # words, all of one letter, that make a set of letters
NUMBER = re.compile(r"\d+([-.]\d+)?")  # of a word in its sentence; 1-2 and 1.1 are not words of their own
WHITE = re.compile("[ \t]+")  # not all that is space to Python: a word may be a no-break space


@dataclass(frozen=True)
class Shape:
    """What the lines of a file hold."""

    width: int
    word: int
    tag: int  # -1: none
    labelled: bool
    tabs: bool
    style: Style
    letters: bool  # each line is a letter, spaces too
    apart: bool  # tags without letters, and no O among them: each word is a mark of its own


def shape(source: Source, columns: Mapping[str, str], unlabelled: bool = False) -> Shape:
    """From the first lines. Columns are named by numbers from 1."""
    lines = [line for _, line in islice(_told(source), BOUND)]
    tabs = any("\t" in line for line in lines if not line.startswith("#"))
    rows = [row for row in (_parts(line, tabs) for line in lines) if len(row) > (0 if unlabelled else 1)]
    if not rows:
        raise UserError(f"{places.said(source.path)} has no line with a word and its tag; separate the two with a tab or a space, or say --layout")
    width = Counter(map(len, rows)).most_common(1)[0][0]
    rows = [row for row in rows if len(row) == width]
    rows = [row for row in rows if not row[0].startswith("#")] or rows  # which of these are comments hangs on the others
    counted = width > 2 and all(NUMBER.fullmatch(row[0]) for row in rows)
    word = _column(source, columns, "text", width, 1 if counted else 0)
    tag = -1 if width == 1 else _column(source, columns, "label", width, width - 1)
    words = [row[word] for row in rows]
    tags = {row[tag] for row in rows} if tag >= 0 else set()
    single = sum(len(one) <= 1 for one in words) >= 0.98 * len(words) and len(words) >= ENOUGH
    how = marks.style(tags)
    return Shape(width, word, tag, not unlabelled, tabs, how, single, how == "bare" and "O" not in tags)


def said(found: Shape) -> str:
    scheme = {"before": "tags such as B-X", "after": "tags such as X-B", "bare": "tags without B- and I-"}[found.style]
    words = f"{'letters' if found.letters else 'words'} from column {found.word + 1}"
    return f"{words}, a line each" if not found.labelled else f"{words}, {scheme} from column {found.tag + 1}"


def sentences(source: Source, found: Shape) -> Iterator[tuple[int, str, tuple[Mark, ...]]]:
    """The line on which each begins, its text, its marks."""
    for first, rows in _groups(source, found):
        words = [_word(row[found.word], found) for row in rows]
        text, spans = marks.placed(words, "" if found.letters else " ")
        tags = [row[found.tag] for row in rows] if found.labelled else []
        if found.apart:
            yield first, text, tuple(Mark(tag, *span) for tag, span in zip(tags, spans, strict=False))
        else:
            yield first, text, marks.marks(spans[: len(tags)], tags, found.style)


def _groups(source: Source, found: Shape) -> Iterator[tuple[int, list[list[str]]]]:
    rows: list[list[str]] = []
    first = 0
    for number, line in _told(source):
        row = _parts(line, found.tabs)
        if not row:
            if rows:
                yield first, rows
            rows = []
            continue
        if _aside(row, found, begins=not rows):
            continue
        _check(row, found, source, number)
        first = first if rows else number
        rows.append(row)
    if rows:
        yield first, rows


def _told(source: Source) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; a blank one is ""."""
    for number, line in enumerate(corpus.lines(source), 1):
        yield number, line.rstrip("\n") if line.strip() else ""


def _parts(line: str, tabs: bool) -> list[str]:
    if tabs:
        return line.split("\t") if line else []
    return WHITE.split(line.strip(" \t")) if line else []


def _aside(row: list[str], found: Shape, begins: bool) -> bool:
    """-DOCSTART- and comments. A # that is a word has a tag, as #hashtags do."""
    if row[0].startswith("-DOCSTART-"):
        return True
    if found.word == 1 and NUMBER.fullmatch(row[0]) and not row[0].isdecimal():
        return True
    if not row[0].startswith("#") or not begins:
        return False
    return len(row) != found.width or (found.tag >= 0 and marks.split(row[found.tag], found.style) is None)


def _check(row: list[str], found: Shape, source: Source, number: int) -> None:
    at = f"line {number} of {places.said(source.path)}"
    if len(row) != found.width:
        between = "tabs" if found.tabs else "spaces"
        raise UserError(f"{at} has {len(row)} columns between {between} where other lines have {found.width}; give each word a line with its tag")
    if not row[found.word]:
        raise UserError(f"{at} has no word before its tag; write one, or take the line out")
    if found.labelled:
        marks.check(row[found.tag], found.style, at)


def _word(word: str, found: Shape) -> str:
    return " " if found.letters and word == "_" else word


def _column(source: Source, columns: Mapping[str, str], role: str, width: int, guess: int) -> int:
    if role not in columns:
        return guess
    name = columns[role]
    if not name.isdecimal() or not 1 <= int(name) <= width:
        raise UserError(f"{places.said(source.path)} has no column {name!r}; give --{role} a number from 1 to {width}")
    return int(name) - 1


def likely(lines: Iterable[str]) -> bool:
    """Whether lines are words with tags, not texts."""
    rows = [WHITE.split(line.strip()) for line in lines if line.strip() and not line.startswith(("#", "-DOCSTART-"))]
    return bool(rows) and min(map(len, rows)) > 1 and any(marks.split(row[-1], "before") for row in rows)
