"""Where texts lie: files, folders, globs, standard input, object stores; opened as bytes and unpacked on the way."""

from __future__ import annotations

import atexit
import errno
import glob
import gzip
import importlib
import io
import lzma
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from unmask.errors import UserError

PACKED = {"gz": b"\x1f\x8b", "xz": b"\xfd7zXZ\0", "zst": b"\x28\xb5\x2f\xfd"}
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
MAGIC = re.compile(r"[*?\[]")
BLOCK = 1 << 20
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what writing may say, and reading never
_piped: list[str] = []  # the copy of standard input, once there is one


def find(names: Sequence[str | Path]) -> list[str]:
    """Every file that is meant, sorted, none twice, whatever order and spelling they were given in."""
    found: dict[str, str] = {}
    for name in names:
        for path in _expanded(str(name)):
            same = path if path == "-" or URL.match(path) else os.path.realpath(path)
            found[same] = min(path, found.get(same, path))
    return sorted(found.values())


def _expanded(name: str) -> Iterator[str]:
    if name == "-":
        _copy_standard_input()
        yield name
    elif URL.match(name):
        yield from _stored(name)
    elif os.path.exists(name):
        yield from _local(name)
    elif MAGIC.search(name):
        matches = [one for one in sorted(glob.glob(name, recursive=True)) if os.path.isfile(one) or os.path.isdir(one)]
        if not matches:
            raise UserError(f"no file matches {name}; give files, folders or a pattern that matches some")
        for match in matches:
            yield from _local(match)
    else:
        raise UserError(f"there is no file or folder {name or repr(name)}")


def _local(name: str) -> Iterator[str]:
    if os.path.isfile(name):
        yield os.path.normpath(name)
        return
    if not os.path.isdir(name):
        raise UserError(f"{name} is neither a file nor a folder; pipe it in and give - for standard input")
    count = 0
    for folder, below, files in os.walk(name, onerror=_refuse):
        below[:] = [one for one in below if not one.startswith(".")]
        for file in files:
            path = os.path.join(folder, file)
            if not file.startswith(".") and os.path.isfile(path):
                count += 1
                yield os.path.normpath(path)
    if not count:
        raise UserError(f"the folder {name} holds no files; give one that holds texts")


def _refuse(error: OSError) -> None:
    raise UserError(f"the folder {error.filename} cannot be read ({error.strerror}); give one that can") from None


def _stored(name: str) -> Iterator[str]:
    """Objects of a store; its own libraries raise anything."""
    store, path = _store(name)
    try:
        if MAGIC.search(path):
            paths = [one for one in store.glob(path) if store.isfile(one)]
        elif not name.lower().startswith("http") and store.isdir(path):
            paths = [one for one in store.find(path) if not any(part.startswith(".") for part in one.removeprefix(path).split("/"))]
        else:
            paths = [path] if store.exists(path) else []
    except Exception as error:
        raise UserError(f"{name} cannot be reached ({_brief(error)}); check its name and your access to it") from None
    if not paths:
        raise UserError(f"nothing is stored at {name}; check its name")
    for one in paths:
        yield store.unstrip_protocol(one)


def _store(name: str) -> tuple[Any, str]:
    core = extra("fsspec.core", "reading from an object store")
    try:
        store, path = core.url_to_fs(name)
    except (ImportError, ValueError) as error:
        raise UserError(f"{name} cannot be read: {_brief(error)}") from None
    return store, str(path)


def _brief(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def extra(module: str, doing: str, name: str = "data") -> Any:
    """A library that only some need; without it, one sentence says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(f"{doing} needs {module.split('.')[0]}: pip install 'unmask[{name}]'") from None


def _copy_standard_input() -> None:
    """To a file on disk: what is read more than once (a vocabulary, near duplicates) cannot be read from a pipe."""
    if sys.stdin is None or sys.stdin.isatty():
        raise UserError("nothing to read on standard input; pipe text in, or give files")
    with room("standard input"), tempfile.NamedTemporaryFile(prefix="unmask-", delete=False) as copy:
        atexit.register(Path(copy.name).unlink, missing_ok=True)
        shutil.copyfileobj(sys.stdin.buffer, cast(Any, copy), BLOCK)
    _piped[:] = [copy.name]


@contextmanager
def room(what: str) -> Iterator[None]:
    """Around a copy in the temporary folder: one sentence where there is no room for it."""
    try:
        folder = tempfile.gettempdir()
    except OSError:
        raise UserError(f"there is no temporary folder with room for {what}; set TMPDIR to a folder that can be written") from None
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise UserError(f"{what} does not fit into the temporary folder {folder} ({error.strerror}); set TMPDIR to a folder with more room") from None


def said(path: str) -> str:
    """A path for people."""
    return "standard input" if path == "-" else path


def size(path: str) -> int:
    """Bytes as they lie there, -1 where nobody knows."""
    if URL.match(path):
        store, inside = _store(path)
        try:
            return int(store.size(inside) or -1)
        except Exception:  # the store's own libraries raise anything; a size is only for information
            return -1
    return os.stat(_here(path)).st_size


def _here(path: str) -> str:
    if path != "-":
        return path
    if not _piped:
        raise UserError("standard input was not read yet; give - among the files")
    return _piped[0]


def open_bytes(path: str, compression: str = "") -> BinaryIO:
    """The file's bytes, unpacked. Damage shows as OSError, EOFError, zlib.error or lzma.LZMAError while reading."""
    zstandard = extra("zstandard", "reading .zst") if compression == "zst" else None
    if URL.match(path):
        store, inside = _store(path)
        try:
            raw = cast(BinaryIO, store.open(inside, "rb"))
        except Exception as error:
            raise UserError(f"{path} cannot be read ({_brief(error)}); check its name and your access to it") from None
    else:
        raw = Path(_here(path)).open("rb", buffering=BLOCK)  # noqa: SIM115 - who asked for it closes it
    if compression == "gz":
        return cast(BinaryIO, io.BufferedReader(_Together(gzip.GzipFile(fileobj=raw), raw), BLOCK))
    if compression == "xz":
        return cast(BinaryIO, io.BufferedReader(_Together(lzma.LZMAFile(raw), raw), BLOCK))
    if compression == "zst":
        return cast(BinaryIO, io.BufferedReader(_Zstandard(zstandard, raw), BLOCK))
    return raw


def compression(path: str, head: bytes) -> str:
    """By the first bytes, whatever the name says; a name that promises packing which is not there is a mistake."""
    for name, magic in PACKED.items():
        if head.startswith(magic):
            return name
    ending = path.rpartition(".")[2].lower()
    if ending in PACKED and head:
        raise UserError(f"{path} is named .{ending} but is not packed so; rename it, or copy it again from where it came")
    return ""


class _Together(io.RawIOBase):
    """An unpacker that closes the file below it as well."""

    def __init__(self, unpacked: Any, raw: BinaryIO) -> None:
        self.unpacked, self.raw = unpacked, raw

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        piece = self.unpacked.read(len(into))
        into[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        if not self.closed:
            self.unpacked.close()
            self.raw.close()
        super().close()


class _Zstandard(io.RawIOBase):
    """Frames of zstandard, one after another. The library's own stream reader takes a file that breaks off for a whole one."""

    def __init__(self, library: Any, raw: BinaryIO) -> None:
        self.library, self.raw, self.kept = library, raw, memoryview(b"")
        self.frame: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        while not self.kept:
            packed = self.frame.unused_data if self.frame is not None and self.frame.eof else b""
            packed = packed or self.raw.read(1 << 14)  # small, as a packed byte can become thousands
            if self.frame is not None and self.frame.eof:
                self.frame = None
            if not packed:
                if self.frame is not None:
                    raise EOFError("a frame of zstandard has no end")
                return 0
            self.frame = self.frame or self.library.ZstdDecompressor().decompressobj()
            try:
                self.kept = memoryview(self.frame.decompress(packed))
            except self.library.ZstdError as error:
                raise lzma.LZMAError(str(error)) from None  # as every other unpacker says damage
        count = min(len(into), len(self.kept))
        into[:count] = self.kept[:count]
        self.kept = self.kept[count:]
        return count

    def close(self) -> None:
        if not self.closed:
            self.raw.close()
        super().close()
