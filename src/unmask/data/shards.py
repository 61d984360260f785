"""Shards: a corpus as ids on disk, memory-mapped, with the bounds of its sentences and documents.

A folder of shards holds `index.json`, the tokenizer that made them, and files `00000.safetensors`. A file holds three arrays:
`tokens` (uint16, or uint32 where the vocabulary needs it), `sentences` (where each one ends among the tokens) and `documents`
(where each one ends among the sentences). Documents kept for validation stand after the others.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from unmask.config import read_json
from unmask.errors import UserError
from unmask.tokenizer import Tokenizer

Array = np.ndarray[Any, np.dtype[Any]]
FORMAT = 1
NAMES = ("tokens", "sentences", "documents")
COUNTED = ("documents", "sentences", "tokens")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


@dataclass(frozen=True)
class Shard:
    """One file, as the index knows it; of documents, sentences and tokens, first those to learn from, then those for validation."""

    file: str
    sha256: str
    documents: tuple[int, int]
    sentences: tuple[int, int]
    tokens: tuple[int, int]

    def bytes(self, width: int) -> int:
        return sum(self.tokens) * width + 4 * (sum(self.sentences) + sum(self.documents))


@dataclass(frozen=True)
class Documents:
    """Some documents in memory: sentence i is tokens[sentences[i]:sentences[i + 1]], document i the sentences documents[i] to documents[i + 1]."""

    numbers: Array  # of each document in its corpus
    tokens: Array
    sentences: Array  # (sentences + 1,) int64
    documents: Array  # (documents + 1,) int64

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def bounds(self) -> Array:
        """Document i is tokens[bounds[i]:bounds[i + 1]]."""
        return self.sentences[self.documents]


class Corpus:
    """A folder of shards, one split of it: documents by number."""

    def __init__(self, place: str | Path, split: str = "train", *, check: bool = True) -> None:
        if split not in ("train", "validation"):
            raise UserError(f"shards have no split {split!r}; they have train and validation")
        self.place = place
        self.home = _local(place)
        self.index = read_index(self.home)
        if not isinstance(self.home, Path):
            self.home = self.home.of(self.index)
        self.part = int(split == "validation")
        self.check = check
        self.shards = tuple(_shard(self.home, said) for said in self.index["shards"])
        self.starts = np.cumsum([0, *(shard.documents[self.part] for shard in self.shards)])
        self.dtype = np.dtype(self.index["dtype"])
        self.open = cache(self._open)

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def tokens(self) -> int:
        return sum(shard.tokens[self.part] for shard in self.shards)

    def fetch(self, numbers: Array) -> Documents:
        """These documents, in this order."""
        numbers = np.asarray(numbers, np.int64)
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise IndexError(f"there are {len(self)} documents, not {int(numbers.max()) + 1}")
        homes = np.searchsorted(self.starts, numbers, "right") - 1
        tokens, lengths, counts = [np.zeros(0, self.dtype)], [np.zeros(0, np.int64)], [0]
        for number, home in zip(numbers.tolist(), homes.tolist(), strict=True):
            words, sentences, documents = self.open(home)
            place = number - int(self.starts[home]) + self.part * self.shards[home].documents[0]
            first, last = int(documents[place - 1]) if place else 0, int(documents[place])
            ends = sentences[first:last].astype(np.int64)
            start = int(sentences[first - 1]) if first else 0
            tokens.append(words[start : int(ends[-1])] if len(ends) else words[:0])
            lengths.append(np.diff(ends, prepend=start))
            counts.append(last - first)
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))])
        return Documents(numbers, np.concatenate(tokens), bounds, np.cumsum(counts))

    def _open(self, number: int) -> tuple[Array, Array, Array]:
        """The arrays of one file, mapped into memory; its hash is checked the first time."""
        shard = self.shards[number]
        path = self.home / shard.file if isinstance(self.home, Path) else _fetched(self.home, shard.file)
        if not path.is_file():
            raise UserError(f"{path} is missing; copy it again, or run unmask prepare anew")
        if self.check and sha256(path) != shard.sha256 and not isinstance(self.home, Path):
            path.unlink()  # what was copied may have been damaged there, and mended since
            path = _fetched(self.home, shard.file)
        if self.check and sha256(path) != shard.sha256:
            raise UserError(
                f"{path} is not what was written (its hash differs): it is cut short or damaged; copy it again, or run the same unmask prepare once more"
            )
        arrays = mapped(path)
        if tuple(map(len, arrays)) != tuple(sum(getattr(shard, name)) for name in NAMES):
            raise UserError(f"the index of {self.place} is damaged (it counts other than {shard.file} holds); copy it again, or run unmask prepare anew")
        return arrays

    def made_by(self, tokenizer: Tokenizer, name: str = "the model's") -> None:
        """A model that reads by another tokenizer would take every number for another piece."""
        if tokenizer.fingerprint != self.index["tokenizer"]:
            size = f"{self.index['vocabulary']:,} entries to {tokenizer.size:,}"
            remedy = f"run unmask prepare with that one, or train with {self.place}/tokenizer"
            raise UserError(f"{self.place} was made with another tokenizer than {name} ({size}); {remedy}")

    @property
    def tokenizer(self) -> Path:
        """The folder of the tokenizer that made them."""
        if isinstance(self.home, Path):
            return self.home / "tokenizer"
        found = [_fetched(self.home, f"tokenizer/{name}") for name in TOKENIZER_FILES]
        return found[0].parent

    def verify(self) -> None:
        """Every file against its hash."""
        for number in range(len(self.shards)):
            self.open(number)


# ---- a file


def write_shard(path: Path, arrays: Mapping[str, Array], about: Mapping[str, str]) -> None:
    """Written beside, made safe on the disk, and renamed: a file of that name is whole.

    It is of the format safetensors, whose own writer puts what is said of a file in another order each time; here it is the same bytes.
    """
    data = hashlib.sha256()
    for name in NAMES:
        data.update(np.ascontiguousarray(arrays[name]).data)
    header: dict[str, Any] = {"__metadata__": dict(sorted({**about, "data": data.hexdigest()}.items()))}
    end = 0
    for name in NAMES:
        start, end = end, end + arrays[name].nbytes
        header[name] = {"dtype": f"U{8 * arrays[name].itemsize}", "shape": list(arrays[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with beside.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in NAMES:
                file.write(np.ascontiguousarray(arrays[name]).data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        raise UserError(
            f"{path} could not be written ({error.strerror or error}); free some space and run the same command again: what is done is kept"
        ) from None
    finally:
        beside.unlink(missing_ok=True)


def mapped(path: Path) -> tuple[Array, Array, Array]:
    header, start = _header(path)
    kinds = {"U16": np.uint16, "U32": np.uint32}
    try:
        said = [header[name] for name in NAMES]
        return tuple(
            np.memmap(path, kinds[one["dtype"]], "r", start + one["data_offsets"][0], tuple(one["shape"])) if one["shape"][0] else np.zeros(0, np.uint32)
            for one in said
        )  # type: ignore[return-value]
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise UserError(f"{path} is no shard ({error}); delete it and run unmask prepare anew") from None


def about(path: Path) -> dict[str, str]:
    """What was said of a shard when it was written."""
    return dict(_header(path)[0].get("__metadata__", {}))


def data_hash(path: Path) -> str:
    """Of everything behind the header, which says what it was."""
    with path.open("rb") as file:
        file.seek(_header(path)[1])
        return hashlib.file_digest(file, "sha256").hexdigest()


def _header(path: Path) -> tuple[dict[str, Any], int]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        try:
            if size > 100_000:
                raise ValueError("its header is too long")
            return json.loads(file.read(size)), 8 + size
        except ValueError as error:
            raise UserError(f"{path} is no shard ({error}); delete it and run unmask prepare anew") from None


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- the index


def write_index(folder: Path, said: Mapping[str, Any], shards: Sequence[Shard]) -> None:
    totals = {name: [sum(getattr(shard, name)[part] for shard in shards) for part in (0, 1)] for name in COUNTED}
    whole = {"format": FORMAT, **said, **totals, "shards": [asdict(shard) for shard in shards]}
    try:
        put(folder / "index.json", json.dumps(whole, indent=1) + "\n")
    except OSError as error:
        raise UserError(
            f"{folder / 'index.json'} could not be written ({error.strerror or error}); free some space and run the same command again: what is done is kept"
        ) from None


def put(path: Path, text: str) -> None:
    """Written beside and renamed."""
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def read_index(folder: Any) -> dict[str, Any]:
    if isinstance(folder, Path) and not (folder / "index.json").is_file():
        unfinished = (folder / "settings.json").is_file()
        remedy = "its unmask prepare did not finish; run the same command again" if unfinished else "give the folder that unmask prepare wrote"
        raise UserError(f"{folder} holds no shards (no index.json): {remedy}")
    found = read_json(folder / "index.json" if isinstance(folder, Path) else _fetched(folder, "index.json"))
    if found.get("format") != FORMAT:
        raise UserError(f"{folder} is of format {found.get('format')!r}, this version reads {FORMAT}; run unmask prepare anew")
    pairs = all(isinstance(found.get(name), list) and len(found[name]) == 2 and all(type(one) is int for one in found[name]) for name in COUNTED)
    kinds = {"tokenizer": str, "text": str, "vocabulary": int, "sources": list, "shards": list}
    wrong = [name for name, kind in kinds.items() if type(found.get(name)) is not kind]
    if wrong or not pairs or found.get("dtype") not in ("uint16", "uint32") or not all(isinstance(one, dict) for one in found["shards"]):
        raise UserError(f"the index of {folder} is damaged ({', '.join(wrong) or 'its counts or dtype'}); copy it again, or run unmask prepare anew")
    return found


def _shard(folder: Any, said: Mapping[str, Any]) -> Shard:
    try:
        pairs = [(int(said[name][0]), int(said[name][1])) for name in COUNTED]
        if min(min(pair) for pair in pairs) < 0:
            raise ValueError("a count below zero")
        if Path(said["file"]).name != said["file"]:
            raise ValueError(f"{said['file']!r} is no name of a file")
        return Shard(said["file"], said["sha256"], *pairs)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise UserError(f"the index of {folder} is damaged ({error}); copy it again, or run unmask prepare anew") from None


def width_of(vocabulary: int) -> Any:
    return np.uint16 if vocabulary <= 2**16 else np.uint32


# ---- far away


@dataclass(frozen=True)
class Far:
    """A folder of an object store, whose files are copied here once."""

    url: str
    cache: Path

    def __str__(self) -> str:
        return self.url

    def of(self, index: Mapping[str, Any]) -> Far:
        """The same, its files kept apart from those that stood at the address before."""
        content = hashlib.sha256(json.dumps([index["text"], index["tokenizer"], index["shards"]]).encode()).hexdigest()[:16]
        return Far(self.url, self.cache / content)


def _local(place: str | Path) -> Path | Far:
    if "://" not in str(place):
        return Path(place).expanduser()
    url = str(place).rstrip("/")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Far(url, home / "unmask" / "shards" / hashlib.sha256(url.encode()).hexdigest()[:16])


def _fetched(far: Far, name: str) -> Path:
    """The file as it is here, copied now if it is not yet. The index is asked for anew each time: it says which files are meant."""
    path = far.cache / name
    if path.is_file() and name != "index.json":
        return path
    try:
        import fsspec
    except ImportError:
        raise UserError(f"reading {far.url} needs fsspec: pip install 'unmask[data]'") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with fsspec.open(f"{far.url}/{name}", "rb") as source, beside.open("wb") as target:
            while data := source.read(1 << 24):
                target.write(data)
        os.replace(beside, path)
    except FileNotFoundError:
        raise UserError(f"{far.url}/{name} is not there; give the folder that unmask prepare wrote") from None
    except Exception as error:  # every object store has its own kinds
        raise UserError(f"{far.url}/{name} could not be read ({type(error).__name__}: {error}); check the address and the rights to it") from None
    finally:
        beside.unlink(missing_ok=True)
    return path


def share_of_validation(fraction: float) -> float:
    if not (math.isfinite(fraction) and 0 <= fraction < 1):
        raise UserError(f"a validation share of {fraction} is none; give a number from 0 to below 1, such as 0.005")
    return fraction


def kept_back(digest: bytes, fraction: float) -> bool:
    """Whether a document is for validation: by its own hash, so that it is in every run and on every machine."""
    return int.from_bytes(digest[:8], "little") < fraction * 2**64
