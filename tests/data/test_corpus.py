"""Any corpus: every kind, packing, encoding and layout gives the same documents; every fault is one sentence that says where."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import random
import resource
import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from unmask.data import corpus
from unmask.data.corpus import Source, documents, rows, said, sources, texts
from unmask.errors import UserError

DOCUMENTS = ["The first one.\nIt has two lines.", "둘째 글은 한국어로 쓰여 있다.", 'A third, with "quotes", commas\tand tabs.']
PACKERS: dict[str, Any] = {"": bytes, "gz": gzip.compress, "xz": lzma.compress, "zst": zstandard.compress}


def written(kind: str, given: list[str] = DOCUMENTS) -> bytes:
    if kind == "parquet":
        sink = pyarrow.BufferOutputStream()
        parquet.write_table(
            pyarrow.table({"id": list(range(len(given))), "text": given, "label": ["x"] * len(given)}), sink, row_group_size=max(2, len(given) // 20)
        )
        return sink.getvalue().to_pybytes()
    if kind == "jsonl":
        return "\n".join(json.dumps({"id": 1, "text": one, "label": "x"}, ensure_ascii=False) for one in given).encode()
    if kind in ("csv", "tsv"):
        between = "," if kind == "csv" else "\t"
        quoted = ['"' + one.replace('"', '""') + '"' for one in given]
        return (f"id{between}text{between}label\n" + "".join(f"1{between}{one}{between}x\n" for one in quoted)).encode()
    return "\n\n".join(given).encode()


def refused(*names: Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        list(texts(sources(names, **options)))
    message = str(caught.value)
    assert "\n" not in message
    assert all(str(name) in message for name in names if name != "-")
    return message


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("kind", corpus.KINDS)
def test_every_kind_and_packing_gives_the_same(tmp_path: Path, kind: str, packing: str) -> None:
    ending = "txt" if kind == "text" else kind
    path = tmp_path / f"texts.{ending}{f'.{packing}' if packing else ''}"
    path.write_bytes(PACKERS[packing](written(kind)))
    (source,) = sources([path])
    assert (source.kind, source.compression, source.size) == (kind, packing, path.stat().st_size)
    assert source.column == ("" if kind == "text" else "text")
    assert list(texts([source])) == DOCUMENTS
    assert list(texts([source])) == DOCUMENTS, "again"
    if kind != "text":
        assert [(row.text, row.label) for row in rows(source, "label")] == [(one, "x") for one in DOCUMENTS]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp949", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("kind", ["text", "jsonl", "csv", "tsv"])
def test_every_encoding_gives_the_same(tmp_path: Path, kind: str, encoding: str) -> None:
    path = tmp_path / f"texts.{kind}"
    path.write_bytes(written(kind, DOCUMENTS * 5).decode().replace("\n", "\r\n").encode(encoding))
    (source,) = sources([path])
    assert source.encoding == encoding.removesuffix("-sig")
    assert list(texts([source])) == DOCUMENTS * 5
    assert list(texts(sources([path], encoding=encoding))) == DOCUMENTS * 5


def test_layouts_are_found_said_and_chosen(tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text("\n\na\nb\n \t\n\nc  \n")
    (tmp_path / "line.txt").write_text("a\nb\nc\n")
    blank, line = sources([tmp_path])
    assert (blank.layout, line.layout) == ("blank", "line")
    assert list(documents(blank)) == ["a\nb", "c"]
    assert list(documents(line)) == ["a", "b", "c"]
    told = said([blank, line])
    assert len(told) == 2
    assert "documents separated by blank lines (--layout chooses another)" in told[0]
    assert "a document a line" in told[1]
    for layout, expected in {"file": ["a\nb\nc", "a\nb\nc"], "line": list("abcabc"), "blank": ["a\nb", "c", "a\nb\nc"]}.items():
        assert list(texts(sources([tmp_path], layout=layout))) == expected


def test_a_folder_of_many_small_files_is_a_document_a_file(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number:02}.txt").write_text(f"one {number}\n\ntwo\n")
    found = sources([tmp_path])
    assert {one.layout for one in found} == {"file"}
    assert list(texts(found))[3] == "one 3\ntwo"
    assert said(found) == [f"12 files of text ({sum(one.size for one in found) / 1e6:.1f} MB), read as UTF-8, a document a file (--layout chooses another)"]


def test_a_single_blank_line_among_thousands_separates_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a text\n" * 3_000 + "\n" + "a text\n" * 3_000)
    assert sources([tmp_path])[0].layout == "line"


def test_the_order_given_changes_nothing(tmp_path: Path) -> None:
    names = []
    for name in ("b.txt", "a.jsonl", "c.csv"):
        (tmp_path / name).write_bytes(written({"b.txt": "text", "a.jsonl": "jsonl", "c.csv": "csv"}[name]))
        names.append(tmp_path / name)
    expected = sources(names)
    for _ in range(5):
        random.shuffle(names)
        assert sources([*names, tmp_path]) == expected


def test_objects_are_known_whatever_the_ending(tmp_path: Path) -> None:
    (tmp_path / "texts.train").write_bytes(written("jsonl"))
    (tmp_path / "strings.jsonl").write_text('"a"\n"b"\n')
    strings, objects = sources([tmp_path])
    assert (objects.kind, objects.column) == ("jsonl", "text")
    assert list(texts([strings])) == ["a", "b"]
    assert sources([tmp_path / "texts.train"], kind="text")[0].kind == "text"


def test_a_table_without_header(tmp_path: Path) -> None:
    (tmp_path / "cola.tsv").write_text('gj04\t1\t\tThe "sailors rode.\ngj04\t0\t*\t"He" ran\n')
    assert "--column: gj04, 1, , The" in refused(tmp_path / "cola.tsv")
    (source,) = sources([tmp_path / "cola.tsv"], column="4")
    assert list(texts([source])) == ['The "sailors rode.', '"He" ran']
    assert "no header" in said([source])[0]


def test_mixed_encodings_are_said(tmp_path: Path) -> None:
    for name, encoding in {"a.txt": "utf-8", "b.txt": "cp949"}.items():
        (tmp_path / name).write_bytes(("고양이가 있었다.\n" * 30).encode(encoding))
    found = sources([tmp_path])
    told = said(found)
    assert any("CP949" in one and "--encoding chooses another" in one for one in told)
    assert told[-1] == "encodings are mixed (CP949 (EUC-KR is part of it), UTF-8): each file is read in its own"
    assert set(texts(found)) == {"고양이가 있었다."}


class Piped:
    buffer = io.BytesIO(gzip.compress(written("text")))

    def isatty(self) -> bool:
        return False


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Piped())
    (source,) = sources(["-"])
    assert list(texts([source])) == DOCUMENTS
    assert said([source])[0].startswith("standard input: text packed as gz")


# ---- bad input


def test_no_text_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"")
    assert refused(path) == f"{path} is empty; give files that hold text"
    path.write_text(" \n\n\t\n")
    assert refused(path) == f"there is no text in {path}; give files that hold some"
    (tmp_path / "b.jsonl").write_text('{"text": ""}\n')
    assert "there is no text in" in refused(tmp_path / "b.jsonl")
    with pytest.raises(UserError, match="no files were given"):
        sources([])


def test_an_empty_file_among_others_is_left_out_and_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.txt").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"b\.txt is empty"):
        assert [Path(one.path).name for one in sources([tmp_path])] == ["a.txt"]


def test_a_field_that_is_null_at_first(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    for first in ('{"text": null, "id": 1}', '{"title": "x", "text": null}', '{"text": null}\n{}', "{}"):
        path.write_text(first + '\n{"text": "Hello world. Second.", "id": 2}\n')
        for column in (None, "text"):
            assert list(texts(sources([path], column=column))) == ["Hello world. Second."]
    path.write_text('{"title": "x"}\n{"title": "y", "text": "Hello."}\n')
    with pytest.warns(UserWarning, match="line 1 of .* has no field 'text'"):
        assert list(texts(sources([path], column="text"))) == ["Hello."]


def test_a_file_whose_rows_are_all_null_is_named(tmp_path: Path) -> None:
    path = tmp_path / "n.jsonl"
    for line in ('{"text": null, "id": 1}\n', '{"a": null, "b": null}\n', "{}\n", '{"title": "x", "text": null}\n'):
        path.write_text(line * 3)
        assert refused(path) == f"there is no text in {path}; give files that hold some"
        (tmp_path / "good.txt").write_text("text")
        with pytest.warns(UserWarning, match=f"there is no text in {path}; the other files are read"):
            assert list(texts(sources([tmp_path]))) == ["text"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16:replace", "utf-32"])
def test_no_mark_says_how_the_bytes_stand(tmp_path: Path, encoding: str) -> None:
    path, name = tmp_path / "a.txt", encoding.partition(":")[0]
    path.write_bytes("some text\n".encode(f"{name}-le"))
    said = f"{path} does not begin with a mark that says how the bytes of {name} stand; give --encoding {name}-le or {name}-be"
    assert refused(path, encoding=encoding) == said


def test_no_room_to_unpack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, draw = tmp_path / "a.parquet.gz", random.Random(0)
    path.write_bytes(gzip.compress(written("parquet", [str(draw.random()) for _ in range(1_000)])))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    try:
        said = refused(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert said == f"{path}, unpacked, does not fit into the temporary folder {tmp_path} (File too large); set TMPDIR to a folder with more room"


@pytest.mark.parametrize(
    "content", [b"\x89PNG\r\n\x1a\n" + bytes(50), b"PK\x03\x04" + bytes(50), b"a\0b\0\0c" * 9, gzip.compress(b"x" * 257 + b"ustar" + bytes(500), mtime=0)]
)
def test_binary_files_are_named_and_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "good.txt").write_text("text")
    (tmp_path / "odd").write_bytes(content)
    with pytest.raises(UserError, match=f"{tmp_path}/odd is a .*, not text; leave it out"):
        sources([tmp_path])


@pytest.mark.parametrize("packing", ["gz", "xz", "zst"])
@pytest.mark.parametrize("kind", ["text", "jsonl", "parquet"])
def test_packed_files_that_break_off(tmp_path: Path, kind: str, packing: str) -> None:
    draw = random.Random(0)
    many = [" ".join(str(draw.random()) for _ in range(20)) for _ in range(20_000)]
    packed = PACKERS[packing](written(kind, many))
    path = tmp_path / f"texts.{kind}.{packing}"
    path.write_bytes(packed[: int(len(packed) * 0.9)])
    assert refused(path) == f"{path} breaks off in the middle of its .{packing} data; copy it again from where it came"
    path.write_bytes(packed[: len(packed) // 2] + b"\xff" * 50 + packed[len(packed) // 2 + 50 :])
    assert "copy it again from where it came" in refused(path) or kind == "jsonl", "there the damage may first show as an odd line"


@pytest.mark.parametrize("encoding", ["utf-8", "cp949", "utf-16-le"])
def test_a_fault_late_in_a_file_is_placed(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.txt"
    good = "고양이가 있었다, 가자.\n".encode(encoding)
    count = 4_000_000 // len(good)
    fault = b"\x00\xdc\n\0" if encoding == "utf-16-le" else b"\xff\n"
    path.write_bytes(good * count + "앞".encode(encoding) + fault + good * 9)
    message = refused(path, encoding=encoding)
    assert f"at byte {len(good) * count + len('앞'.encode(encoding)):,} (line {count + 1:,})" in message
    assert "--encoding" in message
    assert len(list(texts(sources([path], encoding=f"{encoding}:replace", layout="line")))) == count + 10


def test_a_character_cut_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("고양이\n고양이".encode()[:-1])
    assert "at byte 16 (line 2)" in refused(tmp_path / "a.txt", encoding="utf-8")


def test_an_encoding_that_no_rule_knows(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(("今日は街で白い猫を見ました。\n" * 9).encode("shift_jis"))
    assert refused(path).endswith("give --encoding, such as cp949, gb18030, shift_jis or cp1251")
    assert list(texts(sources([path], encoding="shift_jis", layout="line"))) == ["今日は街で白い猫を見ました。"] * 9


def test_options_that_are_wrong(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("text")
    for options, says in [
        ({"kind": "cvs"}, "--kind cvs is not known, did you mean csv"),
        ({"layout": "lines"}, "did you mean line"),
        ({"encoding": "utf9"}, "there is no encoding 'utf9'"),
        ({"column": "text"}, "--column text is for jsonl, csv, tsv and parquet"),
    ]:
        with pytest.raises(UserError, match=says):
            sources([path], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "parquet"])
def test_a_column_named_wrongly(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(written(kind))
    assert "has no column 'txet', did you mean text?" in refused(path, column="txet")
    (source,) = sources([path])
    with pytest.raises(UserError, match=r"'lable'.*did you mean label"):
        list(rows(source, "lable"))


def test_lines_that_are_no_objects(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": \n')
    assert f"line 2 of {path} is not JSON" in refused(path)
    path.write_text('{"text": "a"}\n{"text": 3}\n')
    assert f"line 2 of {path} has no text in 'text'" in refused(path)
    (tmp_path / "a.json").write_text('[\n{"text": "a"}\n]')
    assert refused(tmp_path / "a.json").endswith("is JSON, but not an object a line; write it as .jsonl")


def test_nuls_and_lone_surrogates_are_mended_and_said(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a\\u0000b"}\n{"text": "\\ud800c"}\n{"text": "\\ud83d\\ude00"}\n')
    (source,) = sources([path])
    with pytest.warns(UserWarning, match="read as U") as caught:
        assert list(documents(source)) == ["a\ufffdb", "\ufffdc", "😀"]
    assert len(caught) == 1
    assert list(documents(source, repair=False)) == ["a\0b", "\ud800c", "😀"]


def test_what_is_no_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1" + b"junk" * 99)
    assert "cannot be read as parquet" in refused(path)
    parquet.write_table(pyarrow.table({"id": [1], "size": [2.0]}), path)
    assert "has no column named text" in refused(path)


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(written("parquet"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow.types", None)
    with pytest.raises(UserError, match=r"reading parquet needs pyarrow: pip install 'unmask\[data\]'"):
        sources([tmp_path])


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("text")

    def shut(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", shut)
    assert refused(tmp_path / "a.txt") == f"{tmp_path / 'a.txt'} cannot be read (Permission denied); give a file that can"


def test_a_file_that_is_gone_since(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        list(documents(Source(str(tmp_path / "gone.txt"), layout="line")))


# ---- memory


@pytest.mark.parametrize("layout", ["blank", "line", "file"])
def test_a_document_too_long_is_cut_at_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    monkeypatch.setattr(corpus, "LONGEST", 100)
    (tmp_path / "a.txt").write_text("some words\n" * 50 + "x" * 250 + "\nend\n")
    with pytest.warns(UserWarning, match=r"more than 100 letters; it is cut"):
        found = list(texts(sources([tmp_path], layout=layout)))
    assert max(map(len, found)) <= 100
    assert "".join("".join(found).split()) == "somewords" * 50 + "x" * 250 + "end"
    assert layout == "line" or all(one.endswith("words") for one in found[:5])


def test_a_record_too_long_is_cut_at_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(written("parquet", ["some words\n" * 50, "short"]))
    monkeypatch.setattr(corpus, "LONGEST", 100)
    with pytest.warns(UserWarning, match="more than 100 letters; it is cut"):
        found = list(texts(sources([tmp_path])))
    assert found[-1] == "short"
    assert max(map(len, found)) <= 100
    assert "".join(found[:-1]).replace("\n", "") == "some words" * 50


@pytest.mark.parametrize("kind", ["text", "jsonl", "csv", "parquet"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, kind: str) -> None:
    (tmp_path / f"a.{kind}").write_bytes(written(kind, ["some words of a document\n" * 40] * 30_000))
    found = sources([tmp_path])
    tracemalloc.start()
    try:
        assert sum(1 for _ in texts(found)) == 30_000
        assert tracemalloc.get_traced_memory()[1] < 8_000_000, "of 30 MB"
    finally:
        tracemalloc.stop()
