"""Minimal pairs, as in BLiMP (Warstadt et al. 2020): of two sentences that differ in one fault, which one the model finds likelier.

A sentence is worth the sum over its pieces of log p(piece | all others), each masked in its turn (Salazar et al. 2020); where the model
reads left to right, of log p(piece | those before it). The logarithm is natural, the length is not taken out, and the special pieces
around the sentence are read but not asked for. A pair is right where the good sentence is worth as much as the bad one or more.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import nn

from unmask.data.batch import Batch
from unmask.errors import UserError
from unmask.infer.predictor import Predictor, load
from unmask.model.layout import FULL, Packed
from unmask.progress import Progress
from unmask.tasks.base import quote
from unmask.tokenizer import Tokenizer

Key = TypeVar("Key", bound=Hashable)
Numbers = np.ndarray[Any, np.dtype[Any]]
Tell = Callable[[int, int], None]  # pieces done, and pieces in all
ROWS = 2_048  # of the word head at once: its logits are the largest thing there is here


class Pair(NamedTuple):
    good: str
    bad: str
    task: str = ""
    phenomenon: str = ""


@dataclass(frozen=True)
class Part:
    right: float  # the share; of a phenomenon, and of the whole, the mean of its tasks'
    pairs: int
    ties: int


@dataclass(frozen=True)
class Scores:
    tasks: Mapping[str, Part]
    phenomena: Mapping[str, Part]

    @property
    def whole(self) -> Part:
        return _mean(self.tasks.values())

    def json(self) -> dict[str, Any]:
        shares = {"right_by_phenomenon": _mean(self.phenomena.values()).right, "tie_rate": self.whole.ties / self.whole.pairs}
        return {**asdict(self.whole), **shares, **asdict(self)}

    def table(self) -> Table:
        table = Table("", "right", "pairs", "ties")
        for parts, kind in ((self.phenomena, "phenomena"), (self.tasks, "tasks")):
            if kind == "tasks" or set(parts) != {""}:
                for name, part in (*parts.items(), (f"mean of {len(parts)} {kind}", _mean(parts.values()))):
                    table.add_row(Text(name or "(no name)"), f"{part.right:.2%}", f"{part.pairs:,}", f"{part.ties:,}")
                table.add_section()
        return table


def score(model: Predictor, pairs: Iterable[Sequence[str] | Mapping[str, str]], *, budget: int | None = None, tell: Tell | None = None) -> Scores:
    """Pairs are `Pair`s, or dictionaries or tuples of good, bad and, where there are any, task and phenomenon."""
    found = [Pair(**pair) if isinstance(pair, Mapping) else Pair(*pair) for pair in pairs]
    if not found:
        raise UserError("there are no pairs to score; give one or more")
    good, bad = sentences(model, [pair.good for pair in found] + [pair.bad for pair in found], budget=budget, tell=tell).reshape(2, -1)
    right, tied = good >= bad, good == bad
    phenomena: dict[str, list[Part]] = defaultdict(list)
    for (phenomenon, _), part in _parts([(pair.phenomenon, pair.task) for pair in found], right, tied).items():
        phenomena[phenomenon].append(part)
    return Scores(_parts([pair.task for pair in found], right, tied), {name: _mean(parts) for name, parts in phenomena.items()})


def _parts(keys: Sequence[Key], right: Numbers, tied: Numbers) -> dict[Key, Part]:
    places: dict[Key, list[int]] = defaultdict(list)
    for i, key in enumerate(keys):
        places[key].append(i)
    return {key: Part(float(right[which].mean()), len(which), int(tied[which].sum())) for key, which in places.items()}


def _mean(parts: Iterable[Part]) -> Part:
    rights, pairs, ties = zip(*((part.right, part.pairs, part.ties) for part in parts), strict=True)
    return Part(sum(rights) / len(rights), sum(pairs), sum(ties))


@torch.inference_mode()
def sentences(model: Predictor, texts: Sequence[str], *, budget: int | None = None, tell: Tell | None = None) -> Numbers:
    """What each text is worth, float64. A batch holds at most `budget` tokens, or one sequence where that alone has more."""
    tokenizer, head, left = _able(model)
    mask = 0 if left else tokenizer.special("mask")
    once = list(dict.fromkeys(texts))
    encodings = tokenizer.encode(once)
    lengths = np.fromiter(map(len, encodings), np.int64, len(once))
    order = np.argsort(-lengths, kind="stable")  # longest first, from here on
    lengths = lengths[order]
    ids, special = (_flat([getattr(encodings[i], name) for i in order]) for name in ("ids", "special_tokens_mask"))
    starts, owner = np.cumsum(lengths) - lengths, np.repeat(np.arange(len(once)), lengths)
    place = np.arange(len(ids)) - starts[owner]
    asked = np.flatnonzero((special == 0) & (place >= left))  # what stands first has nothing to its left that could tell of it
    counts = np.bincount(owner[asked], minlength=len(once))
    for text, length, count in zip((once[i] for i in order), lengths, counts, strict=True):
        if length > (model.card.length or length):
            raise UserError(f"{quote(text)} has {length} pieces, and the model reads {model.card.length}; leave it out, as half a sentence is no sentence")
        if not count:
            raise UserError(f"{quote(text)} has no piece that could be scored; leave it out")
    # A sequence shows one sentence, and is asked for all of its pieces, or for the masked one.
    sequences, edges = (np.arange(len(once)), np.cumsum([0, *counts])) if left else (owner[asked], np.arange(len(asked) + 1))
    found = [torch.zeros(0, device=model.device)]
    for first, end in _cut(lengths[sequences], budget or (65_536 if model.device.type == "cuda" else 2_048)):
        shown, pieces = sequences[first:end], asked[edges[first] : edges[end]]
        sizes = lengths[shown]
        begins = np.cumsum(sizes) - sizes
        positions = np.arange(sizes.sum()) - np.repeat(begins, sizes)
        tokens = ids[positions + np.repeat(starts[shown], sizes)]
        rows = np.repeat(begins, np.diff(edges[first : end + 1])) + place[pieces] - left
        if not left:
            tokens[rows] = mask
        inputs, targets = {"tokens": tokens, "positions": positions}, {"rows": rows, "labels": ids[pieces]}
        made = ({name: torch.from_numpy(value) for name, value in part.items()} for part in (inputs, targets))
        batch = Batch(next(made), Packed.of(sizes.tolist()), next(made)).to(model.device)
        states = model.model(batch.inputs, batch.layout)[batch.targets["rows"]]
        for some, labels in zip(states.split(ROWS), batch.targets["labels"].split(ROWS), strict=True):
            found.append(-F.cross_entropy(head(some.float(), batch.layout), labels, reduction="none"))
        if tell is not None:
            tell(int(edges[end]), len(asked))
    worth = np.bincount(owner[asked], torch.cat(found).cpu().numpy(), len(once))  # the only time that a GPU is waited for
    places = {once[i]: place for place, i in enumerate(order)}
    return worth[[places[text] for text in texts]]


def _able(model: Predictor) -> tuple[Tokenizer, nn.Module, bool]:
    """Its tokenizer, its word head in float32 (logits of bf16 are so coarse that near sentences change places), and whether it reads left to right."""
    if model.tokenizer is None or "words" not in model.heads:
        has = f"only {', '.join(model.heads)}" if model.heads else "none"
        raise UserError(f"this model has no word head, by which a sentence is scored (of heads it has {has}); give one that learned masked or next words")
    head = model.model.heads["words"]
    left = getattr(model.model.config.encoder, "reach", (FULL,))[0][1] == 0
    return model.tokenizer, head if next(head.parameters()).dtype == torch.float32 else deepcopy(head).float(), left


def _flat(rows: Sequence[Sequence[int]]) -> Numbers:
    return np.fromiter(chain.from_iterable(rows), np.int64)


def _cut(lengths: Numbers, budget: int) -> Iterator[tuple[int, int]]:
    """Runs of neighbours of at most so many tokens together."""
    ends, first = np.cumsum(lengths), 0
    while first < len(lengths):
        end = max(first + 1, int(np.searchsorted(ends, ends[first] - lengths[first] + budget, "right")))
        yield first, end
        first = end


def read(path: Path) -> list[Pair]:
    """A JSON object a line: `good` and `bad`; `task` and `phenomenon` where there are any."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); give a file of pairs, a JSON object a line") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    return [_pair(line, f"line {number} of {path}") for number, line in enumerate(lines, 1) if line.strip()]


def _pair(line: str, where: str) -> Pair:
    try:
        found = json.loads(line)
        fields = {name: found[name] for name in Pair._fields if found.get(name) is not None}
        if all(isinstance(value, str) for value in fields.values()):
            return Pair(**fields)
    except (ValueError, RecursionError, AttributeError, TypeError):  # no JSON, no object, or one without good or bad
        pass
    raise UserError(f'{where} is no pair; write {{"good": ..., "bad": ...}}, all texts, with "task" and "phenomenon" where there are any')


def command(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a model folder with a word head, or a hub id")
    parser.add_argument("pairs", type=Path, help='a file of JSON lines: {"good": ..., "bad": ...}, with "task" and "phenomenon" where there are any')
    parser.add_argument("--json", action="store_true", help="JSON, also on a terminal (piped, it comes anyway)")
    parser.add_argument("--precision", choices=("float32", "bf16", "auto"), default="float32", help="how exactly to compute (float32)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1; by default a GPU where there is one")


def run(asked: argparse.Namespace) -> None:
    pairs = read(asked.pairs)
    model = load(asked.model, precision=asked.precision, device=asked.device)
    with Progress() as told:
        found = score(model, pairs, tell=lambda done, total: told.reach("scored", "pieces", done, total))
    if asked.json or not sys.stdout.isatty():
        print(json.dumps(found.json(), ensure_ascii=False))
    else:
        Console().print(found.table())
