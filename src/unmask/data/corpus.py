"""Any text corpus: files, folders, globs, standard input or an object store, as documents one after another.

What a file is (kind, packing, encoding, layout, column) is found from its head, once, and kept in a `Source`; `said` tells the
user. Reading streams: never more than one document is held, and none is longer than LONGEST letters.
"""

from __future__ import annotations

import codecs
import io
import json
import lzma
import os
import re
import shutil
import statistics
import tempfile
import warnings
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from unmask.data import encodings, places, records
from unmask.errors import UserError, near

KINDS = ("text", "jsonl", "csv", "tsv", "parquet")
LAYOUTS = {"blank": "documents separated by blank lines", "line": "a document a line", "file": "a document a file"}
ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".pq": "parquet"}
HEAD = 1 << 20  # bytes of a file that are looked at before it is read
LONGEST = 100_000_000  # letters of a document; what is longer is cut
RARE = 2_000  # a blank line among more lines than that separates nothing
MANY, SMALL = 10, 100_000  # so many files of a folder, most of them smaller than so many bytes, are a document each
TIMES = {"gz": 2.7, "xz": 3.6, "zst": 3.0}  # how much text a byte of such a file usually holds
UNREADABLE = re.compile("[\0\ud800-\udfff]")  # no tokenizer and no file takes them


@dataclass(frozen=True)
class Source:
    """A file and how to read it."""

    path: str
    kind: str = "text"
    compression: str = ""
    encoding: str = "utf-8"
    layout: str = ""
    column: str = ""
    size: int = -1  # bytes on disk
    delimiter: str = ""
    quoted: bool = True
    header: bool = True


@dataclass(frozen=True)
class Row:
    """A text with its label, for data that has them."""

    text: str
    label: str
    number: int


def sources(
    names: Sequence[str | Path], *, kind: str | None = None, layout: str | None = None, encoding: str | None = None, column: str | None = None
) -> tuple[Source, ...]:
    """Every file that is meant, with what was found about it; the same whatever order they are given in. Empty files are left out, with a warning."""
    _known("kind", kind, KINDS)
    _known("layout", layout, LAYOUTS)
    encoding = encodings.checked(encoding) if encoding else None
    found, empty = [], []
    for path in places.find(names):
        one = _source(path, kind, encoding, column)
        if one is None:
            empty.append(places.said(path))
        else:
            found.append(one)
    if not found:
        raise UserError(f"{', '.join(empty[:3])} {'is' if len(empty) == 1 else 'are'} empty; give files that hold text" if empty else "no files were given")
    if empty:
        warnings.warn(f"{empty[0] if len(empty) == 1 else f'{len(empty)} files, such as {empty[0]},'} {'is' if len(empty) == 1 else 'are'} empty", stacklevel=2)
    if column is not None and all(one.kind == "text" for one in found):
        raise UserError(f"--column {column} is for jsonl, csv, tsv and parquet, and these files are plain text; leave it out, or say --kind")
    return _with_layouts(found, layout)


def said(found: Sequence[Source]) -> list[str]:
    """What was found, a sentence for each sort of file."""
    sorts: dict[tuple[str, ...], list[Source]] = defaultdict(list)
    for one in found:
        sorts[(one.kind, one.compression, one.encoding, one.layout, one.column, str(one.header))].append(one)
    told = []
    for (kind, packed, encoding, layout, column, header), files in sorts.items():
        count = f"{len(files):,} files of" if len(files) > 1 else f"{places.said(files[0].path)}:"
        sizes = f" ({sum(one.size for one in files) / 1e6:,.1f} MB)" if all(one.size >= 0 for one in files) else ""
        facts = [f"{count} {kind}{f' packed as {packed}' if packed else ''}{sizes}"]
        if kind != "parquet":
            facts.append(f"read as {encodings.named(encoding)}" + ("" if encoding == "utf-8" else " (--encoding chooses another)"))
        if kind == "text":
            facts.append(f"{LAYOUTS[layout]} (--layout chooses another)")
        elif column:
            facts.append(f"text from {'field' if kind == 'jsonl' else 'column'} {column}{'' if header == 'True' else ', no header'}")
        told.append(", ".join(facts))
    if len(used := sorted({one.encoding for one in found if one.kind != "parquet"})) > 1:
        told.append(f"encodings are mixed ({', '.join(map(encodings.named, used))}): each file is read in its own")
    return told


def expected(found: Sequence[Source]) -> int | None:
    """About how many bytes of text they hold; None where a file does not say its size."""
    return None if any(one.size < 0 for one in found) else int(sum(one.size * TIMES.get(one.compression, 1.0) for one in found))


def documents(source: Source, *, repair: bool = True) -> Iterator[str]:
    """The documents of one file, in order, each with line breaks between its lines. NULs and lone surrogates become U+FFFD, unless `repair` is false."""
    told = False
    with _told(source):
        for text in _texts(source):
            if repair and UNREADABLE.search(text):
                text = UNREADABLE.sub("\ufffd", text)
                if not told:
                    warnings.warn(f"{places.said(source.path)} holds NULs or halves of surrogate pairs; they are read as U+FFFD", stacklevel=2)
                told = True
            yield text


def texts(found: Iterable[Source], *, repair: bool = True) -> Iterator[str]:
    """The documents of all of them, in order."""
    count, none = 0, []
    for source in found:
        any_text = False
        for text in documents(source, repair=repair):
            any_text = True
            yield text
        count += 1
        if not any_text:
            none.append(places.said(source.path))
    names = f"{', '.join(none[:3])}{' and others' if len(none) > 3 else ''}"
    if len(none) == count:
        raise UserError(f"there is no text in {names}; give files that hold some")
    if none:
        warnings.warn(f"there is no text in {names}; the other files are read", stacklevel=2)


def rows(source: Source, label: str) -> Iterator[Row]:
    """The rows of a table with their labels, empty texts and missing labels too."""
    if source.kind == "text":
        raise UserError(f"{places.said(source.path)} is plain text and has no column {label!r}; give jsonl, csv, tsv or parquet")
    with _told(source):
        names = _names(source)
        if names and label not in names:
            raise UserError(f"{places.said(source.path)} has no column {label!r}{near(label, names)}; name one of its own with --label")
        columns = records.parts(source.column, names)
        for number, values in _rows(source, [*columns, label]):
            value = values.pop() if len(values) > 1 else None
            yield Row(_text(values, number, source), "" if value is None else str(value).strip(), number)


# ---- what a file is


def _known(option: str, value: str | None, known: Iterable[str]) -> None:
    if value is not None and value not in known:
        raise UserError(f"--{option} {value} is not known{near(value, known)}")


def look(path: str, encoding: str | None = None) -> tuple[Source, bytes] | None:
    """What the head of a file says of its packing and encoding, whatever its rows are, and that head; None where it is empty."""
    source = Source(path, size=places.size(path))
    with _told(source), places.open_bytes(path) as file:
        source = replace(source, compression=places.compression(places.said(path), file.read(8)))
    with _told(source), places.open_bytes(path, source.compression) as file:
        head = file.read(HEAD)
        middle = _middle(file, source)
    name = places.said(path)
    if not head:
        return None
    if head.startswith(b"PAR1"):
        return replace(source, kind="parquet"), head
    if what := encodings.binary(head if encoding is None else head[:300].replace(b"\0", b" ")):
        raise UserError(f"{name} is {what}, not text; leave it out, or give a pattern such as *.txt")
    found = encoding or encodings.detect(head, middle, whole=len(head) < HEAD)
    if not found:
        raise UserError(f"{name} is not plainly UTF-8, UTF-16, CP949 or Latin-1; give --encoding, such as cp949, gb18030, shift_jis or cp1251")
    if instead := encodings.unmarked(found, head):
        raise UserError(f"{name} does not begin with a mark that says how the bytes of {found.partition(':')[0]} stand; give --encoding {instead}")
    return replace(source, encoding=found), head


def _source(path: str, kind: str | None, encoding: str | None, column: str | None) -> Source | None:
    """The same with its kind and the column of its text."""
    found = look(path, encoding)
    if found is None:
        return None
    source, head = found
    name = places.said(path)
    if "parquet" in (source.kind, kind):
        source = replace(source, kind="parquet")
        with parquet(source) as file:
            return replace(source, column=records.choose(records.parquet_names(file, name), column, name))
    return _with_column(replace(source, kind=kind or _kind(path, source.compression, decoded(head, source))), head, column)


def _middle(file: BinaryIO, source: Source) -> bytes:
    """A piece from the middle of a long file: the head alone may be plain ASCII."""
    if source.compression or source.size < 4 * HEAD or not file.seekable():
        return b""
    file.seek(source.size // 2)
    return file.read(HEAD // 4)


def decoded(head: bytes, source: Source) -> str:
    text = codecs.getincrementaldecoder(encodings.reader(source.encoding)[0])("replace").decode(head)
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _kind(path: str, compression: str, head: str) -> str:
    """By the ending; else objects, a line each, are jsonl."""
    ending = os.path.splitext(path.removesuffix(f".{compression}") if compression else path)[1].lower()
    if ending in ENDINGS:
        return ENDINGS[ending]
    lines = [line for line in head.split("\n")[:20] if line.strip()]
    if lines and all(map(_is_object, lines[:-1] or lines)):
        return "jsonl"
    if ending == ".json":
        raise UserError(f"{places.said(path)} is JSON, but not an object a line; write it as .jsonl")
    return "text"


def _is_object(line: str) -> bool:
    try:
        return line.lstrip().startswith("{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _with_column(source: Source, head: bytes, column: str | None) -> Source:
    """The same, with the column of the text."""
    name = places.said(source.path)
    if source.kind == "text":
        return source
    if source.kind == "jsonl":
        with _told(source), _open(_forgiving(source)) as file:
            fields, doubtful = records.json_fields(_unmarked(file), name)
        fields = fields or doubtful[:1]  # where all are null, any of them is as empty
        return replace(source, column=records.choose(fields, column, name, doubtful) if fields else "")
    source = separated(source, decoded(head, source))
    names = _names(source)
    numbers = column is not None and column not in names and all(one.isdecimal() and 1 <= int(one) <= len(names) for one in column.split(","))
    if numbers:
        return replace(source, column=str(column), header=False)
    return replace(source, column=records.choose(names, column, name))


def separated(source: Source, head: str) -> Source:
    """The same csv or tsv, with what stands between its cells and whether quotation marks wrap them."""
    between = "\t" if source.kind == "tsv" else records.delimiter(head.partition("\n")[0])
    return replace(source, delimiter=between, quoted=between != "\t" or records.quoted(head[: head.rfind("\n") + 1] or head, between))


def _names(source: Source) -> list[str]:
    """The columns, where a header names them."""
    name = places.said(source.path)
    if source.kind == "parquet":
        with parquet(source) as file:
            return records.parquet_all(file, name)
    if source.kind not in ("csv", "tsv") or not source.header:
        return []
    with _told(source), _open(_forgiving(source)) as file:
        return [one.strip() for one in next(records.table(_unmarked(file), source.delimiter, source.quoted, name), (0, []))[1]]


def _with_layouts(found: list[Source], layout: str | None) -> tuple[Source, ...]:
    """Each text with its layout. Many small files of one folder are a document each; else blank lines decide."""
    folders: dict[str, list[Source]] = defaultdict(list)
    for one in found:
        if one.kind == "text":
            folders[os.path.dirname(one.path)].append(one)
    small = {name for name, files in folders.items() if len(files) >= MANY and statistics.median(one.size for one in files) < SMALL}
    return tuple(
        one if one.kind != "text" else replace(one, layout=layout or ("file" if os.path.dirname(one.path) in small else _layout(one))) for one in found
    )


def _layout(source: Source) -> str:
    with _told(source), _open(_forgiving(source)) as file:
        lines = file.read(4 * HEAD).strip().split("\n")
    blank = sum(not line.strip() for line in lines)
    return "blank" if blank * RARE >= len(lines) else "line"


def _forgiving(source: Source) -> Source:
    """The same, read with its faults: where lines end and what columns there are does not hang on them, and reading will tell."""
    return replace(source, encoding=f"{encodings.reader(source.encoding)[0]}:replace")


# ---- reading


def _open(source: Source) -> io.TextIOWrapper:
    """As text, every line break as \\n."""
    encoding, errors = encodings.reader(source.encoding)
    return io.TextIOWrapper(cast(Any, places.open_bytes(source.path, source.compression)), encoding=encoding, errors=errors, newline=None)


def lines(source: Source) -> Iterator[str]:
    """Its lines as they stand, and what is wrong with its bytes told in one sentence."""
    with _told(source), _open(source) as file:
        yield from _unmarked(file)


def blocks(source: Source) -> Iterator[str]:
    """The same text in pieces, for what has no lines."""
    with _told(source), _open(source) as file:
        yield file.read(HEAD).removeprefix("\ufeff")
        while block := file.read(HEAD):
            yield block


def _unmarked(file: io.TextIOWrapper) -> Iterator[str]:
    """Lines without the mark that may stand before the first, and none longer than LONGEST."""
    line = file.readline(LONGEST).removeprefix("\ufeff")
    while line:
        yield line
        line = file.readline(LONGEST)


def _texts(source: Source) -> Iterator[str]:
    if source.kind == "text":
        with _open(source) as file:
            yield from _laid_out(_unmarked(file), source)
        return
    for number, values in _rows(source, records.parts(source.column, _names(source)) if source.column else []):
        text = _text(values, number, source)
        if text.strip():
            yield from _cut(text, source)


def _laid_out(lines: Iterator[str], source: Source) -> Iterator[str]:
    kept: list[str] = []
    length = 0
    for line in lines:
        line = line.rstrip()
        if not line and source.layout == "file":
            continue
        over = length + len(line) > LONGEST
        if kept and (not line or source.layout == "line" or over):
            yield "\n".join(kept)
            kept, length = [], 0
        if over:
            _warn_of_length(source)
        if line:
            kept.append(line)
            length += len(line) + 1
    if kept:
        yield "\n".join(kept)


def _cut(text: str, source: Source) -> Iterator[str]:
    while len(text) > LONGEST:
        _warn_of_length(source)
        end = text.rfind("\n", 1, LONGEST)
        end = end if end > 0 else LONGEST
        yield text[:end]
        text = text[end:].lstrip("\n")
    yield text


def _warn_of_length(source: Source) -> None:
    warnings.warn(f"{places.said(source.path)} holds a document of more than {LONGEST:,} letters; it is cut (is --layout {source.layout} right?)", stacklevel=2)


def _rows(source: Source, columns: Sequence[str]) -> Iterator[tuple[int, list[Any]]]:
    name = places.said(source.path)
    if source.kind == "parquet":
        with parquet(source) as file:
            yield from records.parquet_rows(file, columns, name)
        return
    with _open(source) as text:
        if source.kind == "jsonl":
            yield from records.json_rows(_unmarked(text), columns, name, records.parts(source.column, []))
        else:
            yield from records.table_rows(records.table(_unmarked(text), source.delimiter, source.quoted, name), columns, source.header, name)


def _text(values: Sequence[Any], number: int, source: Source) -> str:
    text = records.joined(values)
    if text is None:
        row = "row" if source.kind == "parquet" else "line"
        raise UserError(f"{row} {number} of {places.said(source.path)} has no text in {source.column!r}; name another column with --column")
    return text.replace("\r\n", "\n").replace("\r", "\n")


@contextmanager
def parquet(source: Source) -> Iterator[BinaryIO]:
    """The file, which must be one that can be read from its end: what is packed is first unpacked to disk."""
    with places.open_bytes(source.path, source.compression) as file:
        if not source.compression:
            yield file
            return
        with places.room(f"{places.said(source.path)}, unpacked,"), tempfile.TemporaryFile() as unpacked:
            with _told(source):
                shutil.copyfileobj(file, unpacked, places.BLOCK)
                unpacked.seek(0)  # writes what is left
            yield cast(BinaryIO, unpacked)


@contextmanager
def _told(source: Source) -> Iterator[None]:
    """What goes wrong while reading, in one sentence."""
    name = places.said(source.path)
    again = "copy it again from where it came"
    try:
        yield
    except UnicodeDecodeError:
        raise UserError(_fault(source)) from None
    except EOFError:
        raise UserError(f"{name} breaks off in the middle of its .{source.compression} data; {again}") from None
    except (zlib.error, lzma.LZMAError) as error:
        raise UserError(f"{name} is damaged ({str(error).rstrip('.')}); {again}") from None
    except OSError as error:
        if error.errno in places.FULL:  # of the temporary folder, around which somebody else tells
            raise
        if error.strerror is None:  # gzip's own
            raise UserError(f"{name} is damaged ({error}); {again}") from None
        raise UserError(f"{name} cannot be read ({error.strerror}); give a file that can") from None


def _fault(source: Source) -> str:
    """Where the first byte stands that is not of the encoding."""
    encoding = encodings.reader(source.encoding)[0]
    decoder = codecs.getincrementaldecoder(encoding)()
    before, line = 0, 1
    with places.open_bytes(source.path, source.compression) as file:
        block = b"x"
        while block:
            block = file.read(HEAD)
            try:
                line += decoder.decode(block, not block).count("\n")
            except UnicodeDecodeError as error:
                before += error.start - (len(error.object) - len(block))  # what the decoder had kept stands first
                line += error.object[: error.start].decode(encoding, "replace").count("\n")
                break
            before += len(block)
    where = f"{places.said(source.path)} is not {encodings.named(source.encoding)} at byte {before:,} (line {line:,})"
    return f"{where}; mend it, name its encoding with --encoding, or read faults as U+FFFD with --encoding {encoding}:replace"
