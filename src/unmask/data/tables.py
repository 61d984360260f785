"""Any table as rows that know their names: csv, tsv, jsonl, parquet, and JSON that is one list. All of it streams.

What `records` and `corpus` know of text columns is not asked for here: a row is all of its columns, and somebody else chooses.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

from unmask.data import corpus, encodings, places, records
from unmask.data.corpus import Source
from unmask.errors import UserError, near

KINDS = ("csv", "tsv", "jsonl", "json", "parquet", "text")
LIST = re.compile(r'\s*(?:\{\s*(?:"[^"]*"\s*:\s*"[^"]*"\s*,\s*)*"data"\s*:\s*)?(?=\[)')  # a list of rows, or {"version": "1.1", "data": such a list}
BOUND = 1_000  # rows that are looked at before a table is read
LETTERS = 1 << 22  # and letters in them
SHORT = 64  # letters from the end of a block within which a fault may be the end's and no fault
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A file of rows. Without a header the columns are numbers from 1, as text."""

    source: Source
    names: tuple[str, ...]

    @property
    def path(self) -> str:
        return places.said(self.source.path)

    @property
    def said(self) -> str:
        """What sort of file it is."""
        packed = f" packed as {self.source.compression}" if self.source.compression else ""
        header = "" if self.source.header else " without a header"
        known = self.source.kind == "parquet" or self.source.encoding == "utf-8"
        return f"{self.source.kind}{packed}{header}" + ("" if known else f" read as {encodings.named(self.source.encoding)}")

    def at(self, number: int) -> str:
        """Where a row stands, to begin a sentence with."""
        unit = {"json": "item", "parquet": "row"}.get(self.source.kind, "line")
        return f"{unit} {number} of {self.path}"

    def rows(self, columns: Sequence[str] = ()) -> Iterator[tuple[int, Row]]:
        """The number of each row and its values by name; of parquet, only these columns."""
        if self.source.kind == "parquet":
            wanted = [name for name in self.names if name in columns] or self.names
            with corpus.parquet(self.source) as file:
                for number, values in records.parquet_rows(file, wanted, self.path):
                    yield number, dict(zip(wanted, values, strict=True))
        elif self.source.kind in ("json", "jsonl"):
            yield from _items(self) if self.source.kind == "json" else _objects(self)
        else:
            yield from _cells(self)

    @cached_property
    def sample(self) -> list[Row]:
        """The first rows."""
        found, letters = [], 0
        for _, row in islice(self.rows(), BOUND):
            found.append(row)
            letters += sum(len(one) for one in row.values() if isinstance(one, str))
            if letters > LETTERS:
                break
        return found

    def has(self, column: str) -> str:
        """The column, which must be there; `labels.real` is a field of an object."""
        first, dot, _ = column.partition(".")
        if column not in self.names and not (dot and first in self.names):
            raise UserError(f"{self.path} has no column {column!r}{near(column, self.names)}")
        return column


def looked(path: str, kind: str | None = None, encoding: str | None = None) -> tuple[Source, str]:
    """A file with its kind, and its first letters."""
    found = corpus.look(path, encodings.checked(encoding) if encoding else None)
    if found is None:
        raise UserError(f"{places.said(path)} is empty; give a file that holds examples")
    source, head = found
    if source.kind == "parquet":
        return source, ""
    text = corpus.decoded(head, source)
    if not text.strip():
        raise UserError(f"{places.said(path)} holds nothing but blank lines; give a file that holds examples")
    return replace(source, kind=kind or _kind(source, text)), text


def opened(source: Source, head: str, columns: Iterable[str] = (), usual: Container[str] = ()) -> Table:
    """The table in a file that was looked at. A first row with one of these columns, or with a usual name, is its header."""
    path = places.said(source.path)
    if source.kind == "parquet":
        with corpus.parquet(source) as file:
            table = Table(source, tuple(records.parquet_all(file, path)))
    elif source.kind in ("csv", "tsv"):
        table = _with_header(corpus.separated(source, head), columns, usual)
    elif source.kind == "text":
        table = Table(source, ("1",))
    else:
        table = Table(source, ())
        table = replace(table, names=tuple(dict.fromkeys(name for row in table.sample for name in row)))
    if not table.sample:
        raise UserError(f"{path} has a header and no rows below it; give a file that holds examples")
    return table


def value(row: Row, column: str) -> Any:
    """What stands in a column, or in the field of an object in one; None where there is none."""
    if column in row or "." not in column:
        return row.get(column)
    first, _, rest = column.partition(".")
    return value(row[first], rest) if isinstance(row.get(first), Mapping) else None


def text(table: Table, number: int, row: Row, column: str) -> str:
    """The text in a column. A missing one of a row that has the column is an empty text, as tables of reviews hold."""
    found = value(row, column)
    if found is None and (column in row or "." in column):
        found = ""
    if not isinstance(found, str):
        what = "no field" if column not in row and "." not in column else "no text in"
        raise UserError(f"{table.at(number)} has {what} {column!r}; mend it, or name another column with --text or --second")
    if corpus.UNREADABLE.search(found):
        warnings.warn(f"{table.path} holds NULs or halves of surrogate pairs; they are read as U+FFFD", stacklevel=2)
        found = corpus.UNREADABLE.sub("\ufffd", found)
    return found


def plain(name: str) -> str:
    """A column's name as names are compared: `#1 String` and `#1_string` are one."""
    return re.sub(r"[\s_-]+", "_", name.strip().lower())


# ---- what a file is


def _kind(source: Source, head: str) -> str:
    """By what it begins with where that is JSON; else by the ending; else a tab in every line makes a table."""
    path = source.path.removesuffix(f".{source.compression}") if source.compression else source.path
    ending = corpus.ENDINGS.get(os.path.splitext(path)[1].lower(), "")
    if ending in ("csv", "tsv"):
        return ending
    if LIST.match(head) and (ending != "jsonl" or head.lstrip().startswith("[")):
        return "json"
    lines = [line for line in head.split("\n")[:20] if line.strip()]
    if ending or lines[0].lstrip().startswith("{"):
        return ending or "jsonl"
    return "tsv" if min(line.count("\t") for line in lines[:-1] or lines) else "text"


def _with_header(source: Source, columns: Iterable[str], usual: Container[str]) -> Table:
    path = places.said(source.path)
    first = [row for _, row in islice(records.table(corpus.lines(source), source.delimiter, source.quoted, path), BOUND)]
    names, rest = [cell.strip() for cell in first[0]], first[1:]
    asked, known = set(columns), [name for name in names if plain(name) in usual]
    numbers = asked <= {str(number) for number in range(1, len(names) + 1)} and not asked <= {*names}
    recurring = _recurring(names, rest)
    if numbers or (recurring and asked.isdisjoint(names) and len(known) < 2 and recurring.issuperset(known)):
        return Table(replace(source, header=False), tuple(str(number) for number in range(1, len(names) + 1)))
    if twice := {name for name in names if name and names.count(name) > 1}:
        raise UserError(f"{path} has two columns named {min(twice)!r}; rename one of them")
    return Table(source, tuple(names))


def _recurring(first: Sequence[str], rest: Sequence[Sequence[str]]) -> set[str]:
    """The cells of the first row that stand below themselves again, as labels do and names of columns do not."""
    return {cell for place, cell in enumerate(first) if cell and any(cell == row[place].strip() for row in rest if place < len(row))}


# ---- reading


def _cells(table: Table) -> Iterator[tuple[int, Row]]:
    """The rows of csv and tsv, each as wide as the header: in one that is not, a cell may stand under another's name."""
    source, names = table.source, table.names
    if source.kind == "text":
        for number, line in enumerate(corpus.lines(source), 1):
            if line.strip():
                yield number, {"1": line.rstrip("\n")}
        return
    rows = records.table(corpus.lines(source), source.delimiter, source.quoted, table.path)
    for number, row in islice(rows, 1 if source.header else 0, None):
        if len(row) != len(names) and (len(row) < len(names) or any(cell.strip() for cell in row[len(names) :])):
            raise UserError(
                f"{table.at(number)} has {len(row)} columns where the first has {len(names)}; mend it, or quote cells that hold {source.delimiter!r}"
            )
        yield number, dict(zip(names, row, strict=False))


def _objects(table: Table) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(corpus.lines(table.source), 1):
        if line.strip():
            found = records.parsed(line, number, table.path)
            if isinstance(found, str):
                raise UserError(f"{table.at(number)} is a string, not an object with names; write one object a line")
            yield number, found


def _items(table: Table) -> Iterator[tuple[int, Row]]:
    """The objects of one long list, each parsed when it is whole; never is more held than one and the block that it ends in."""
    decoder, blocks, number = json.JSONDecoder(), corpus.blocks(table.source), 0
    held = next(blocks)
    start = LIST.match(held)
    if start is None:
        raise UserError(f"{table.path} is JSON, but no list of objects; write one object a line as .jsonl")
    place = start.end() + 1
    while True:
        place = _after(held, place)
        if held[place : place + 1] == "]":
            return
        try:
            found, end = decoder.raw_decode(held, place)
        except (ValueError, RecursionError) as error:
            more = _more(blocks, len(held)) if _cut(error, held) else ""
            if not more:
                raise UserError(f"{table.at(number + 1)} is not JSON ({error}); write it anew, or one object a line as .jsonl") from None
            held, place = held[place:] + more, 0
            continue
        if not isinstance(found, dict):
            raise UserError(f"{table.at(number + 1)} is no object with names; write each example as one")
        number, place = number + 1, end
        yield number, found


def _after(held: str, place: int) -> int:
    """Behind spaces and the comma between two objects."""
    while place < len(held) and held[place] in " \t\n\r,":
        place += 1
    return place


def _cut(error: Exception, held: str) -> bool:
    """Whether an object may only break off where the block does."""
    return isinstance(error, json.JSONDecodeError) and (error.pos > len(held) - SHORT or error.msg.startswith("Unterminated string"))


def _more(blocks: Iterator[str], least: int) -> str:
    """As much again as is held, so that a long object is not parsed once for each of its blocks."""
    pieces, length = [], 0
    for block in blocks:
        pieces.append(block)
        length += len(block)
        if length >= least:
            break
    return "".join(pieces)
