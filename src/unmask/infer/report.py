"""Answers for people and for pipes: a table on a terminal, a JSON object a line when piped."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unmask.data.inputs import Given
from unmask.errors import UserError
from unmask.model import families, store
from unmask.model.model import parameters
from unmask.tasks import tasks
from unmask.tasks.metrics.tally import Comparison, Tally

Ask = Callable[[Iterable[Given]], Iterator[Any]]
EVERY = 5.0  # seconds between two lines of progress


def answers(inputs: Iterator[Given], ask: Ask, *, as_json: bool) -> None:
    """Each input with its answer, as it comes."""
    kept: list[Given] = []

    def keeping() -> Iterator[Given]:
        for given in inputs:
            kept.append(given)
            yield given

    pairs = ((kept.pop(0), answer) for answer in ask(keeping()))
    if as_json or not sys.stdout.isatty():
        for given, answer in pairs:
            print(json.dumps({"input": _plain(given), "answer": _json(answer)}, ensure_ascii=False), flush=True)
        return
    table = Table("input", "answer", show_lines=True)
    for given, answer in pairs:
        table.add_row(Text(_short(given)), Text(_said(answer)))  # as it is: rich would read [b] as a command
    Console().print(table)


def measures(tally: Tally, beside: Comparison | None, *, as_json: bool) -> None:
    """Every metric with its interval, then the answers that were furthest off."""
    found = tally.intervals()
    worst = [(one.loss, *one.example) for one in tally.worst()]
    if as_json or not sys.stdout.isatty():
        said: dict[str, Any] = {"examples": len(tally), "metrics": {name: asdict(one) for name, one in found.items()}}
        if beside:
            said["difference"] = {name: asdict(one) for name, one in beside.differences.items()}
        said["worst"] = [
            {"example": one.name, "input": one.given, "true": _plain(one.answer), "said": _json(answer), "loss": loss} for loss, one, answer in worst
        ]
        print(json.dumps(said, ensure_ascii=False, default=str))
        return
    table = Table(f"{len(tally):,} examples", "", "95% of the time", *(["more than the other"] if beside else []))
    for name, one in found.items():
        row = [name, f"{one.value:.4f}", f"{one.low:.4f} to {one.high:.4f}"]
        table.add_row(*row, *([str(beside.differences[name])] if beside and name in beside.differences else []))
    Console().print(table)
    table = Table("the worst", "true", "said", show_lines=True)
    for _, one, answer in worst:
        table.add_row(Text(_short(one.given)), Text(str(one.answer)), Text(_said(answer)))
    if worst:
        Console().print(table)


def vectors(inputs: Iterator[Given], ask: Ask, out: Path | None) -> None:
    """One .npy of all vectors, written beside and renamed; or JSON lines."""
    if out is None:
        for vector in ask(inputs):
            print(f"[{', '.join(map(str, vector))}]")  # each float32 in as few digits as tell it from every other
        return
    if out.suffix != ".npy":
        raise UserError(f"--out {out} is no .npy file; name one that ends in .npy")
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} to write {out.name} into; make it first")
    beside = out.with_name(f".{out.name}.{os.getpid()}.npy")
    start = told = time.monotonic()
    count, width = 0, 0
    try:
        with beside.open("wb") as file:
            for vector in ask(inputs):
                count, width = count + 1, len(vector)
                if count == 1:
                    _header(file, 0, width)
                file.write(np.asarray(vector, "<f4").tobytes())
                if time.monotonic() - told > EVERY:
                    told = time.monotonic()
                    print(f"{count:,} texts, {count / (told - start):,.0f} a second", file=sys.stderr)
            file.seek(0)
            _header(file, count, width)
        os.replace(beside, out)
    except OSError as error:
        raise UserError(f"{out} could not be written ({error.strerror or error}); free some space or choose another place") from None
    finally:
        beside.unlink(missing_ok=True)
    taken = time.monotonic() - start
    print(f"{out}: {count:,} vectors of {width}, {taken:.1f} s, {count / max(taken, 1e-9):,.0f} a second", file=sys.stderr)


def thing(name: str, *, as_json: bool, statistics: bool = False) -> None:
    """What a folder of a model or of shards holds, or the list of tasks or families."""
    rows: list[dict[str, Any]]
    if name == "tasks":
        rows = [{"task": key, "head": one.head or "(none)", "does": (sys.modules[one.__module__].__doc__ or "").split("\n")[0]} for key, one in tasks().items()]
    elif name == "families":
        rows = _shapes()
    elif (Path(name) / "index.json").is_file() or "://" in name:
        rows = [_shards(name, statistics)]
    else:
        rows = [_folder(name)]
    listed(rows, as_json=as_json)


def listed(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    """One thing with all its fields, or many of a kind, for people or for machines."""
    if as_json or not sys.stdout.isatty():
        for row in rows:
            print(json.dumps(row, ensure_ascii=False))
    elif len(rows) == 1:
        table = Table("what", "is", show_header=False)
        for key, value in rows[0].items():
            table.add_row(key, Text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))
        Console().print(table)
    else:
        table = Table(*rows[0])
        for row in rows:
            table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
        Console().print(table)


def _folder(name: str) -> dict[str, Any]:
    loaded = store.load(name)
    model, card, tokenizer = loaded.model, loaded.card, loaded.tokenizer
    found: dict[str, Any] = {
        "folder": name,
        "family": model.config.family,
        "shape": str(model.config.encoder),
        "parameters": parameters(model),
        "heads": dict(model.config.heads),
    }
    if card.labels:
        found["labels"] = list(card.labels)
    if tokenizer is not None:
        case = "lowercased" if tokenizer.lowercases else "cased"
        found["tokenizer"] = f"{type(tokenizer.rust.model).__name__}, {tokenizer.size:,} entries, {case}, at most {card.length} pieces"
    if model.pooler is not None:
        found["pooler"] = type(model.pooler).__name__
    return found | {"answers": card.json(), "provenance": loaded.provenance}


def _shards(name: str, statistics: bool) -> dict[str, Any]:
    from unmask.data.shards import Corpus
    from unmask.tokenizer import Tokenizer

    found: dict[str, Any] = {"folder": name}
    corpora = {split: Corpus(name, split) for split in ("train", "validation")}
    for split, corpus in corpora.items():
        found[split] = f"{len(corpus):,} documents, {corpus.index['sentences'][corpus.part]:,} sentences, {corpus.tokens:,} tokens"
    index = corpora["train"].index
    found |= {"files": f"{len(index['shards'])}, {index['dtype']}", "vocabulary": index["vocabulary"], "sources": index["sources"], "text": index["text"]}
    if statistics:
        found["statistics"] = {key: round(value, 4) for key, value in _statistics(corpora["train"], Tokenizer.load(Path(name) / "tokenizer")).items()}
    return found


def _statistics(corpus: Any, tokenizer: Any, longest: int = 512, enough: int = 1_000_000) -> dict[str, float]:
    """What pairs and masks come to be on the first so many tokens of a corpus, counted from the batches themselves."""
    from unmask.data.stream import IGNORED, Stream
    from unmask.objectives.base import Pieces, Reading
    from unmask.objectives.mlm import Masking
    from unmask.objectives.nsp import Pairs

    masking = Masking(Pieces.of(tokenizer))
    pairable = int(corpus.index["sentences"][corpus.part]) > len(corpus) > 1
    pairs = Pairs("next" if pairable else "none", tokenizer.special("cls"), tokenizer.special("sep"), longest)
    stream = Stream(corpus, Reading(pairs, masking), tokens=65_536)
    counts = dict.fromkeys(("batches", "tokens", "sequences", "chosen", "mask", "kept", "follow"), 0)
    for _, batch in stream.batches():
        shown, rows, labels = batch.inputs["tokens"].numpy(), batch.targets["words.rows"].numpy(), batch.targets["words.labels"].numpy()
        rows, labels = rows[labels != IGNORED], labels[labels != IGNORED]
        counts["batches"] += 1
        counts["tokens"] += len(shown)
        counts["sequences"] += len(batch.layout.lengths)
        counts["chosen"] += len(rows)
        counts["mask"] += int((shown[rows] == masking.pieces.mask).sum())
        counts["kept"] += int((shown[rows] == labels).sum())
        counts["follow"] += int((batch.targets["next.labels"] == 0).sum()) if pairable else 0
        if counts["tokens"] >= enough:
            break
    chosen, sequences = max(counts["chosen"], 1), counts["sequences"]
    found = {
        "tokens": counts["tokens"],
        "tokens a sequence": counts["tokens"] / sequences,
        "of a batch used": counts["tokens"] / (counts["batches"] * 65_536),
        "pieces chosen": counts["chosen"] / (counts["tokens"] - (3 if pairable else 2) * sequences),
        "of those read [MASK]": counts["mask"] / chosen,
        "of those read another": 1 - (counts["mask"] + counts["kept"]) / chosen,
        "of those read themselves": counts["kept"] / chosen,
    }
    return found | ({"pairs that follow": counts["follow"] / sequences} if pairable else {})


def _shapes() -> list[dict[str, Any]]:
    import torch

    with torch.device("meta"):
        return [
            {
                "shape": f"{kind}.{size}",
                "made of": str(config.encoder),
                "parameters": parameters(families.build(config)),
            }
            for kind in families.names()
            for size, config in families.family(kind).shapes.items()
        ]


def _header(file: Any, count: int, width: int) -> None:
    """A .npy header of fixed length, so that the count can be set at the end."""
    fields = repr({"descr": "<f4", "fortran_order": False, "shape": (count, width)})
    file.write(b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + fields.ljust(117).encode() + b"\n")


def _plain(given: Given) -> Any:
    return str(given) if isinstance(given, Path) else given


def _json(answer: Any) -> Any:
    return [one.json() for one in answer] if isinstance(answer, list) else answer.json()


def _short(given: Given, width: int = 60) -> str:
    text = " | ".join(given) if isinstance(given, tuple) else str(given)
    return text if len(text) <= width else text[: width - 1] + "…"


def _said(answer: Any) -> str:
    return "\n".join(map(str, answer)) or "none" if isinstance(answer, list) else str(answer)
