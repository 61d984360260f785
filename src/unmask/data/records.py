"""Rows of jsonl, csv, tsv and parquet, streaming: which column holds the text, and its values one by one.

Everything here takes lines or open files and knows no `Source`; a fault is a UserError that names the file and the line.
"""

from __future__ import annotations

import csv
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

from unmask.data.places import BLOCK, extra
from unmask.errors import UserError, near

FIELDS = ("text", "document", "content", "body", "article", "passage", "sentence", "review", "comment", "abstract", "story")
PAIRS = tuple(
    tuple(pair.split(","))
    for pair in ("sentence1,sentence2", "premise,hypothesis", "question,context", "question1,question2", "text1,text2", "#1 string,#2 string")
)
WELL_QUOTED = re.compile(r'"(?:[^"]|"")*"')
LOOKED = 1_000  # objects of a jsonl file, at most, that say what its fields hold
CELL = (1 << 31) - 1  # csv refuses cells above 131,072 letters unless told; a document may well be longer


def choose(names: Sequence[str], column: str | None, path: str, doubtful: Sequence[str] = ()) -> str:
    """The column that holds the text: the one given, else by its usual names, else the only one. A pair is "first,second"."""
    known = [*names, *doubtful]
    if column is not None:
        for one in parts(column, known):
            if one not in known:
                raise UserError(f"{path} has no column {one!r}{near(one, known)}; name one of its own with --column")
        return column
    for some in (names, known):
        small = {name.lower().strip(): name for name in reversed(some)}
        for field in FIELDS:
            if field in small:
                return small[field]
        for first, second in PAIRS:
            if first in small and second in small:
                return f"{small[first]},{small[second]}"
    if len(names) == 1:
        return names[0]
    raise UserError(f"{path} has no column named text; say which holds it with --column: {', '.join(known)}")


def parts(column: str, names: Iterable[str]) -> list[str]:
    """The columns that are meant: a name, or several with commas between."""
    return [column] if column in names else column.split(",")


def joined(values: Sequence[Any]) -> str | None:
    """A text of one or more cells; None where one of them is no text."""
    texts = []
    for value in values:
        if isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value):
            texts.append("\n".join(value))  # paragraphs or sentences, listed
        elif isinstance(value, str) or value is None:
            texts.append(value or "")
        else:
            return None
    return "\n".join(texts)


# ---- jsonl


def json_fields(lines: Iterable[str], path: str) -> tuple[list[str], list[str]]:
    """The fields of the first objects that hold text, and those that may: only nulls so far, or something else as well. A line that is a string has none."""
    kinds: dict[str, set[str]] = {}
    objects = letters = 0
    for number, line in enumerate(lines, 1):
        if line.strip():
            found = parsed(line, number, path)
            for key, value in found.items() if isinstance(found, dict) else ():
                kinds.setdefault(key, set()).add("null" if value is None else "other" if joined([value]) is None else "text")
            objects += 1
        letters += len(line)
        if objects >= LOOKED or letters >= BLOCK:
            break
    holding = [key for key, held in kinds.items() if "text" in held and "other" not in held]
    return holding, [key for key, held in kinds.items() if held == {"null"} or held >= {"text", "other"}]


def json_rows(lines: Iterable[str], columns: Sequence[str], path: str, late: Iterable[str] = ()) -> Iterator[tuple[int, list[Any]]]:
    """The number of each line and its values; a line that is a string is its own value, and {} has none. A `late` one may come after some lines."""
    waiting, told = set(late), False
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        found = parsed(line, number, path)
        if isinstance(found, str):
            yield number, [found]
            continue
        waiting.difference_update(found)
        for column in columns:
            if found and column not in found:
                if column not in waiting:
                    raise UserError(f"line {number} of {path} has no field {column!r}{near(column, found)}; give every line one, or name another with --column")
                if not told:
                    warnings.warn(f"line {number} of {path} has no field {column!r}; it is empty in every line before the first that has one", stacklevel=2)
                told = True
        yield number, [found.get(column) for column in columns]


def parsed(line: str, number: int, path: str) -> dict[str, Any] | str:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"line {number} of {path} is not JSON ({error}); write one object a line") from None
    if not isinstance(found, (dict, str)):
        raise UserError(f"line {number} of {path} is neither a JSON object nor a string; write one object a line")
    return found


# ---- csv and tsv


def delimiter(header: str) -> str:
    """What stands between the columns of a csv file."""
    return max(",;\t|", key=header.count) if any(one in header for one in ",;\t|") else ","


def quoted(head: str, between: str) -> bool:
    """Whether quotation marks wrap cells of a tsv. Reviews are full of stray ones; read as wrapping, they would swallow lines."""
    plain, wrapped = _even(head, between, csv.QUOTE_NONE), _even(head, between, csv.QUOTE_MINIMAL)
    if plain != wrapped:
        return wrapped > plain
    opened = [cell for line in head.split("\n") for cell in line.split(between) if cell.startswith('"')]
    return bool(opened) and sum(WELL_QUOTED.fullmatch(cell) is not None for cell in opened) > 0.9 * len(opened)


def _even(head: str, between: str, quoting: Any) -> float:
    """The share of rows that are as wide as the first."""
    csv.field_size_limit(CELL)
    widths = [len(row) for row in csv.reader([line + "\n" for line in head.split("\n")], delimiter=between, quoting=quoting) if row]
    return widths.count(widths[0]) / len(widths) if widths else 0.0


def table(lines: Iterable[str], between: str, wrapped: bool, path: str) -> Iterator[tuple[int, list[str]]]:
    """Every row with the number of its last line, the header too."""
    csv.field_size_limit(CELL)
    rows = csv.reader(lines, delimiter=between, quoting=csv.QUOTE_MINIMAL if wrapped else csv.QUOTE_NONE, strict=wrapped)
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise UserError(f"line {rows.line_num} of {path} is not well quoted ({error}); double the quotation marks within cells") from None
        if row is None:
            return
        if row:
            yield rows.line_num, row


def table_rows(rows: Iterator[tuple[int, list[str]]], columns: Sequence[str], header: bool, path: str) -> Iterator[tuple[int, list[Any]]]:
    """The values of these columns, row by row. Without a header they are numbers from 1."""
    names: list[str] = []
    if header:
        _, names = next(rows, (0, []))
        places = [place(names, column) for column in columns]
    else:
        places = [int(column) - 1 for column in columns]
    for number, row in rows:
        if len(row) <= max(places):
            raise UserError(f"line {number} of {path} has {len(row)} columns, too few for {','.join(columns)}; give every row all of them")
        yield number, [row[one] for one in places]


def place(names: Sequence[str], column: str) -> int:
    return [name.strip() for name in names].index(column.strip())


# ---- parquet


def parquet_names(file: BinaryIO, path: str) -> list[str]:
    """The columns that hold text."""
    types = extra("pyarrow.types", "reading parquet")

    def textual(kind: Any) -> bool:
        if types.is_dictionary(kind):
            return textual(kind.value_type)
        if types.is_list(kind) or types.is_large_list(kind):
            return textual(kind.value_type)
        return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))

    return [field.name for field in _parquet(file, path).schema_arrow if textual(field.type)]


def parquet_all(file: BinaryIO, path: str) -> list[str]:
    return list(_parquet(file, path).schema_arrow.names)


def parquet_rows(file: BinaryIO, columns: Sequence[str], path: str) -> Iterator[tuple[int, list[Any]]]:
    """A few hundred rows at a time, whatever the size of a row group."""
    table, number = _parquet(file, path), 0
    names = list(table.schema_arrow.names)
    for column in columns:
        if column not in names:
            raise UserError(f"{path} has no column {column!r}{near(column, names)}")
    try:
        for batch in table.iter_batches(batch_size=256, columns=list(columns)):
            for values in zip(*(batch.column(column).to_pylist() for column in columns), strict=True):
                number += 1
                yield number, list(values)
    except (OSError, ValueError) as error:  # pyarrow's own errors are both
        raise _damaged(path, error) from None


def _parquet(file: BinaryIO, path: str) -> Any:
    parquet = extra("pyarrow.parquet", "reading parquet")
    try:
        return parquet.ParquetFile(file, pre_buffer=False, buffer_size=BLOCK)  # else it holds all that it will read
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from None


def _damaged(path: str, error: Exception) -> UserError:
    return UserError(f"{path} cannot be read as parquet ({' '.join(str(error).split()).rstrip('.')}); copy it again from where it came")
