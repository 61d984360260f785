"""Where texts lie: the same files whatever the order and spelling; packed files whole or refused; a store; standard input."""

from __future__ import annotations

import gzip
import io
import itertools
import lzma
import resource
import sys
import tempfile
import uuid
import zlib
from pathlib import Path
from typing import Any

import fsspec
import pytest
import zstandard

from unmask.data import places
from unmask.errors import UserError

PACKERS: dict[str, Any] = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstandard.compress}
TEXT = "".join(f"line {number} 고양이\n" for number in range(50_000)).encode()


def refused(*names: Any) -> str:
    with pytest.raises(UserError) as caught:
        places.find(names)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.txt", "below/c.txt", "below/deep/d.txt", ".hidden.txt", ".git/e.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    return tmp_path


def test_the_same_files_in_any_order_and_spelling(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "link.txt").symlink_to(folder / "a.txt")
    names = [".", "a.txt", "./a.txt", "below/../b.txt", "*.txt", "below", "**/*.txt"]
    for some in itertools.permutations(names, 3):
        if "." in some:
            assert places.find(some) == ["a.txt", "b.txt", "below/c.txt", "below/deep/d.txt"]
    (folder / "below" / "loop").symlink_to(folder)
    (folder / "below" / "nowhere.txt").symlink_to(folder / "none.txt")
    assert places.find([folder]) == places.find([folder / "below", folder / "*.txt", folder / "below" / "*.txt"])


def test_a_name_with_letters_of_a_pattern_is_a_file_if_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("x")
    assert places.find([tmp_path / "a[1].txt"]) == [str(tmp_path / "a[1].txt")]


def test_what_is_not_there(tmp_path: Path) -> None:
    assert refused(tmp_path / "*.txt") == f"no file matches {tmp_path}/*.txt; give files, folders or a pattern that matches some"
    assert refused(tmp_path / "none.txt") == f"there is no file or folder {tmp_path}/none.txt"
    assert refused("") == "there is no file or folder ''"
    assert "holds no files" in refused(tmp_path)
    assert "neither a file nor a folder" in refused("/dev/null")


@pytest.mark.parametrize("kind", PACKERS)
def test_packed_files(tmp_path: Path, kind: str) -> None:
    path, packed = tmp_path / "texts", PACKERS[kind](TEXT)
    path.write_bytes(packed)
    assert places.compression(str(path), packed[:8]) == kind
    with places.open_bytes(str(path), kind) as file:
        assert file.read() == TEXT
    path.write_bytes(packed + PACKERS[kind](b"more"))
    with places.open_bytes(str(path), kind) as file:
        assert file.read() == TEXT + b"more", "two packed files, one after the other, are one"


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_packed_files_that_break_off(tmp_path: Path, kind: str, share: float) -> None:
    packed = PACKERS[kind](TEXT)
    (tmp_path / "texts").write_bytes(packed[: int(len(packed) * share)])
    with pytest.raises(EOFError), places.open_bytes(str(tmp_path / "texts"), kind) as file:
        file.read()


@pytest.mark.parametrize("kind", PACKERS)
def test_packed_files_that_are_damaged(tmp_path: Path, kind: str) -> None:
    whole = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT) if kind == "zst" else PACKERS[kind](TEXT)
    packed = bytearray(whole)
    packed[len(packed) // 2 : len(packed) // 2 + 40] = bytes(range(40))
    (tmp_path / "texts").write_bytes(packed)
    with pytest.raises((OSError, lzma.LZMAError, EOFError, zlib.error)), places.open_bytes(str(tmp_path / "texts"), kind) as file:
        assert file.read() != TEXT


def test_a_name_that_promises_packing() -> None:
    with pytest.raises(UserError, match=r"named \.gz but is not packed so"):
        places.compression("a.txt.gz", b"plain te")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(UserError, match=r"reading \.zst needs zstandard: pip install 'unmask\[data\]'"):
        places.open_bytes(__file__, "zst")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    assert refused("memory://x/y.txt") == "reading from an object store needs fsspec: pip install 'unmask[data]'"


@pytest.fixture
def store() -> str:
    name = f"memory:///{uuid.uuid4().hex}"
    for path in ("b.txt", "a.txt", "below/c.txt", "below/.hidden"):
        with fsspec.open(f"{name}/{path}", "wb") as file:
            file.write(f"in {path}".encode())
    return name


def test_a_store(store: str) -> None:
    assert [path.removeprefix(store) for path in places.find([store])] == ["/a.txt", "/b.txt", "/below/c.txt"]
    assert [path.removeprefix(store) for path in places.find([f"{store}/*.txt", f"{store}/a.txt"])] == ["/a.txt", "/b.txt"]
    (path,) = places.find([f"{store}/a.txt"])
    assert places.size(path) == len("in a.txt")
    with places.open_bytes(path) as file:
        assert file.read() == b"in a.txt"
    assert "nothing is stored at" in refused(f"{store}/none.txt")
    assert "cannot be read" in refused("nosuchstore://bucket/a.txt")


class Piped:
    def __init__(self, content: bytes, terminal: bool = False) -> None:
        self.buffer, self.terminal = io.BytesIO(content), terminal

    def isatty(self) -> bool:
        return self.terminal


def test_standard_input_can_be_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Piped(b"some text"))
    assert places.find(["-"]) == ["-"]
    for _ in range(2):
        with places.open_bytes("-") as file:
            assert file.read() == b"some text"
    assert places.size("-") == 9
    monkeypatch.setattr(sys, "stdin", Piped(b"", terminal=True))
    assert "nothing to read on standard input" in refused("-")


@pytest.mark.parametrize("length", [5_000, 3_000_000])
def test_no_room_to_copy_standard_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, length: int) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "stdin", Piped(b"x" * length))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    try:
        with pytest.raises(UserError) as caught:
            places.find(["-"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = f"standard input does not fit into the temporary folder {tmp_path} (File too large); set TMPDIR to a folder with more room"
    assert str(caught.value) == said


def test_no_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    monkeypatch.setattr(sys, "stdin", Piped(b"text"))
    assert refused("-") == "there is no temporary folder with room for standard input; set TMPDIR to a folder that can be written"
