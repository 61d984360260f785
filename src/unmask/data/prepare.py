"""`unmask prepare`: from files of text to shards, once. On all cores, in bounded memory; killed at any point it goes on where it was.

One process reads documents and hands blocks of them out; others cut each block into sentences and pieces and write its shard. A
block is known by its number and its text, so the same command gives the same bytes, with any number of processes, whole or resumed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from unmask import __version__
from unmask.config import read_json
from unmask.data import encodings
from unmask.data.corpus import Source, documents, expected, texts
from unmask.data.sentences import sentences
from unmask.data.shards import NAMES, Shard, about, data_hash, kept_back, put, sha256, share_of_validation, width_of, write_index, write_shard
from unmask.data.spread import cores, spread
from unmask.errors import UserError
from unmask.tokenizer import Tokenizer
from unmask.tokenizer.fast import Encoder

BLOCK = 8_000_000  # characters of text to a shard
BASE, EACH = 250_000_000, 300_000_000  # bytes that the reader takes, and each process; measured, and rounded up
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


@dataclass(frozen=True)
class Block:
    """Documents that become one shard."""

    number: int
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """What every worker needs to know. `settings` is the hash of all that the bytes depend on beside the text."""

    folder: str
    validation: float
    settings: str
    dtype: str


@dataclass(frozen=True)
class Estimate:
    tokens: int
    bytes: int
    free: int

    def check(self, out: Path) -> None:
        """Before anything is written, rather than when the disk is full."""
        if self.bytes > self.free:
            sizes = f"about {self.bytes / 1e6:,.0f} MB and {self.free / 1e6:,.0f} MB are free there"
            raise UserError(f"{out} needs {sizes}; free some space or choose another place")

    def __str__(self) -> str:
        return f"about {self.tokens:,} tokens in {self.bytes / 1e6:,.1f} MB; {self.free / 1e6:,.0f} MB are free there"


def prepare(
    sources: Sequence[Source],
    tokenizer: Tokenizer,
    out: Path,
    *,
    validation: float = 0.005,
    block: int = BLOCK,
    processes: int | None = None,
    memory: int | None = None,
    engine: str = "processes",
    tell: Callable[[Shard], None] = lambda shard: None,
) -> dict[str, Any]:
    """Write the shards of these sources; what is there already from the same command is kept. Gives the index."""
    said = {
        "tokenizer": tokenizer.fingerprint,
        "vocabulary": tokenizer.size,
        "dtype": np.dtype(width_of(tokenizer.size)).name,
        "validation": share_of_validation(validation),
        "block": block,
    }
    plan = Plan(str(out), validation, hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest(), str(said["dtype"]))
    coming = spread(partial(write, plan), blocks(sources, block), engine=engine, processes=_count(processes, memory))
    _begin(out, said, tokenizer)
    shards: list[Shard] = []
    for shard in coming:
        if sum(shard.documents):
            shards.append(shard)
            tell(shard)
    if not shards:
        raise UserError(f"there is no text in {', '.join(source.path for source in sources[:3])}; give files that hold some")
    digest = hashlib.sha256("".join(about(out / shard.file)["text"] for shard in shards).encode()).hexdigest()
    _forget_others(out, {shard.file for shard in shards})
    write_index(out, {"unmask": __version__, **said, "text": digest, "sources": [source.path for source in sources]}, shards)
    return read_json(out / "index.json")


def summary(out: Path, index: dict[str, Any]) -> str:
    """What was written, in a line."""
    documents, sentences, tokens = (index[name] for name in ("documents", "sentences", "tokens"))
    size = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    made = f"{sum(documents):,} documents, {sum(sentences):,} sentences, {sum(tokens):,} tokens in {len(index['shards'])} files ({size / 1e6:,.1f} MB)"
    return f"{out}: {made}; {documents[1]:,} documents ({tokens[1]:,} tokens) for validation"


def blocks(sources: Sequence[Source], size: int) -> Iterator[Block]:
    """Documents in order, as many together as make `size` characters."""
    kept: list[str] = []
    number = length = 0
    for text in texts(sources):
        kept.append(text)
        length += len(text)
        if length >= size:
            yield Block(number, tuple(kept))
            kept, length, number = [], 0, number + 1
    if kept:
        yield Block(number, tuple(kept))


def write(plan: Plan, block: Block) -> Shard:
    """One block into its shard, unless it is there already."""
    path = Path(plan.folder) / f"{block.number:05d}.safetensors"
    digests = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in block.texts]
    said = {"text": hashlib.sha256(b"".join(digests)).hexdigest(), "settings": plan.settings}
    if (kept := _kept(path, said)) is not None:
        return kept
    encoder = _encoder(plan)
    back = [kept_back(digest, plan.validation) for digest in digests]
    first, second = (_encoded(encoder, [text for text, held in zip(block.texts, back, strict=True) if held is part]) for part in (False, True))
    arrays = {name: _joined(name, first, second) for name in NAMES}
    counts = {name: f"{len(one[name])},{len(two[name])}" for name in NAMES for one, two in ((first, second),)}
    arrays["tokens"] = arrays["tokens"].astype(plan.dtype)
    write_shard(path, arrays, said | counts)
    return _read(path, said | counts)


def _kept(path: Path, said: dict[str, str]) -> Shard | None:
    """The shard that is there already, of this text by these settings, and as it was written; else it is made anew."""
    try:
        found = about(path) if path.is_file() else {}
        whole = all(found.get(name) == value for name, value in said.items()) and found.get("data") == data_hash(path)
    except (UserError, OSError):
        return None
    return _read(path, found) if whole else None


def _encoded(encoder: Encoder, given: Sequence[str]) -> dict[str, Any]:
    """Tokens, where each sentence ends among them, and where each document ends among the sentences. Nothing empty is kept."""
    wordpiece = encoder.wordpiece
    parts: list[str] = []
    counts: list[int] = []
    for text in given:
        spans = sentences(text)
        # A byte-level tokenizer counts the space before a word as part of it.
        parts += [text[start:end] if wordpiece or not i else " " + text[start:end] for i, (start, end) in enumerate(spans)]
        counts.append(len(spans))
    ids, bounds = encoder.encode(parts)
    real = np.diff(bounds) > 0
    owners = np.repeat(np.arange(len(counts)), counts)[real]
    held = np.bincount(owners, minlength=len(counts))
    return {"tokens": ids, "sentences": bounds[1:][real].astype(np.uint32), "documents": np.cumsum(held[held > 0]).astype(np.uint32)}


def _joined(name: str, first: dict[str, Any], second: dict[str, Any]) -> Any:
    """Those for validation after the others; what counts another array counts on from where it ended."""
    counted = {"tokens": "", "sentences": "tokens", "documents": "sentences"}[name]
    return np.concatenate([first[name], second[name] + len(first[counted]) if counted else second[name]])


def _read(path: Path, found: dict[str, str]) -> Shard:
    pairs = {name: tuple(int(count) for count in found[name].split(",")) for name in NAMES}
    return Shard(path.name, sha256(path), pairs["documents"], pairs["sentences"], pairs["tokens"])  # type: ignore[arg-type]


@lru_cache(maxsize=1)
def _encoder(plan: Plan) -> Encoder:
    return Encoder(Tokenizer.load(Path(plan.folder) / "tokenizer"))


# ---- before and after


def estimate(sources: Sequence[Source], tokenizer: Tokenizer, out: Path, sample: int = 200_000) -> Estimate | None:
    """How large the shards will be, judged by the first of some of the files; None where a source does not say its size."""
    whole = expected(sources)
    if whole is None:
        return None
    encoder = Encoder(tokenizer)
    step = max(1, len(sources) // 16)
    tokens = size = 0
    for source in sources[::step]:
        taken, length = [], 0
        for text in documents(source):
            taken.append(text[:sample])
            length += len(taken[-1])
            if length >= sample:
                break
        tokens += len(encoder.encode(taken)[0])
        encoding = "utf-8" if source.kind == "parquet" else encodings.reader(source.encoding)[0]
        size += sum(len(text.encode(encoding, "ignore")) for text in taken)
    count = int(whole * tokens / max(size, 1))
    home = next(place for place in (out, *out.absolute().parents) if place.exists())
    return Estimate(count, int(count * (np.dtype(width_of(tokenizer.size)).itemsize + 0.2)), shutil.disk_usage(home).free)


def _begin(out: Path, said: dict[str, Any], tokenizer: Tokenizer) -> None:
    """The folder, with what its bytes depend on: another command's shards are not written over."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for left in (*out.glob(".*.safetensors.*"), *out.glob(".*.new")):
            left.unlink()  # half of a file, from a run that was killed
        if (out / "settings.json").is_file():
            found = read_json(out / "settings.json")
            other = sorted(name for name in said if found.get(name) != said[name])
            if other:
                raise UserError(f"{out} holds shards made with another {' and '.join(other)}; give --out another folder, or delete that one")
        elif any(out.iterdir()):
            raise UserError(f"{out} is there and holds no shards; give --out another folder")
        put(out / "settings.json", json.dumps(said, indent=1) + "\n")  # first: by it the folder is known as ours
        (out / "index.json").unlink(missing_ok=True)  # until all shards are of this text again
        (out / "tokenizer").mkdir(exist_ok=True)
        for name, text in tokenizer.files().items():
            put(out / "tokenizer" / name, text)
    except OSError as error:
        raise UserError(f"{out} could not be written ({error.strerror or error}); free some space or choose another place") from None


def _forget_others(out: Path, meant: Iterable[str]) -> None:
    """Shards that an earlier, longer corpus left behind."""
    for path in out.glob("[0-9]*.safetensors"):
        if path.name not in meant:
            path.unlink()


def _count(processes: int | None, memory: int | None) -> int:
    """How many processes: as many as asked for or as there are cores, and no more than the memory is for."""
    count = processes or cores()
    if memory is None:
        return count
    room = (memory - BASE) // EACH
    if room < 1:
        raise UserError(f"{memory / 1e6:,.0f} MB are too little to work in; give {(BASE + EACH) / 1e6:,.0f}MB or more")
    return min(count, int(room))
