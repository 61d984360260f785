"""What came out of an evaluation, a few bytes an example: metrics with intervals, confusions, calibration, the worst, two models compared."""

from __future__ import annotations

import heapq
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from unmask.errors import UserError, near
from unmask.tasks.metrics import answers, entities, scores
from unmask.tasks.metrics.calibration import Bin, reliability
from unmask.tasks.metrics.entities import Line
from unmask.tasks.metrics.kinds import KINDS, Columns, Metric, named, offered, same
from unmask.tasks.metrics.scores import Array
from unmask.tasks.metrics.trust import RESAMPLES, Difference, Interval, McNemar, differences, intervals, mcnemar, share


def score(kind: str, gold: Iterable[Any], said: Iterable[Any], labels: Sequence[str] = (), none: bool = False) -> dict[str, float]:
    """Every metric at once, without intervals: what a validation during training asks for."""
    tally = Tally(kind, labels, 0, none)
    for true, told in zip(gold, said, strict=True):
        tally.add(true, told)
    return tally.values()


@dataclass(frozen=True)
class Worst:
    loss: float
    example: Any


class Tally:
    """`add` takes what is true and what was said of one example:

    one, choice: a label or its number. many: the labels that hold. number, embed: numbers. tagging: (start, end, label)s.
    spans: the accepted answers (empty where there is none) and the one given; `none` says that the data has questions without one.
    """

    def __init__(self, kind: str, labels: Sequence[str] = (), worst: int = 20, none: bool = False) -> None:
        named(kind)
        self.kind, self.labels, self.most, self.none = kind, tuple(labels), worst, none
        self.places = {label: i for i, label in enumerate(labels)}
        self.shape = KINDS[kind]
        fields = [(name, "u1", (-(-len(labels) // 8),)) for name in ("gold", "said")] if kind == "many" else list(self.shape.fields)
        self.asked = np.dtype(fields)
        self.dtype = np.dtype([*self.asked.descr, ("chance", "f4"), ("loss", "f4")])
        self.kept = bytearray()
        self.fingerprint = 0  # of what is true: two models are compared on the same examples only
        self.entities = entities.Table()
        self.heap: list[tuple[float, int, Any]] = []

    def __len__(self) -> int:
        return len(self.kept) // self.dtype.itemsize

    def add(self, gold: Any, said: Any, *, chance: float = math.nan, loss: float = math.nan, example: Any = None) -> None:
        """`chance` is the probability the model gave its answer, `loss` its loss; `example` is what to show if it is among the worst."""
        row, seen = self._row(gold, said)
        self.fingerprint = zlib.crc32(repr(seen).encode("utf-8", "surrogatepass"), self.fingerprint)
        kept = [np.packbits(one) for one in row] if self.kind == "many" else row
        self.kept += np.array([(*kept, chance, loss)], self.dtype).tobytes()
        bad = float(self.shape.loss(*row) if math.isnan(loss) else loss)
        worst = (math.inf if math.isnan(bad) else bad, -len(self), example)
        if len(self.heap) < self.most:
            heapq.heappush(self.heap, worst)
        elif self.most and worst > self.heap[0]:
            heapq.heapreplace(self.heap, worst)

    def _row(self, gold: Any, said: Any) -> tuple[tuple[Any, ...], Any]:
        """The fields of an example, and what is true of it in a form that is always the same."""
        if self.kind in ("one", "choice"):
            return (self._place(gold), self._place(said)), self._place(gold)
        if self.kind == "many":
            flags = [np.isin(np.arange(len(self.labels)), [self._place(label) for label in some]) for some in (gold, said)]
            return tuple(flags), flags[0].tolist()
        if self.kind == "tagging":
            gold, said = set(gold), set(said)
            self.entities.add(gold, said)
            line = entities.overlap(gold, said)
            return (line.right, line.gold, line.said), sorted(gold)
        if self.kind == "spans":
            f1, exact = answers.overlap_of_words(gold, said, self.none), answers.exact(gold, said, self.none)
            return (f1, bool(exact), len(gold) > 0), list(gold)
        return (float(gold), float(said)), float(gold)

    def _place(self, label: Any) -> int:
        if self.kind == "choice":
            return int(label)
        if not isinstance(label, str) and 0 <= label < len(self.labels):
            return int(label)
        if label not in self.places:
            raise UserError(f"the model has no label {label!r}{near(str(label), self.places)}")
        return self.places[label]

    # ---- what there is to know

    @property
    def rows(self) -> Array:
        if not self.kept:
            raise UserError("there is no example to measure; give one at least")
        return np.frombuffer(bytes(self.kept), self.dtype)

    def columns(self, rows: Array) -> Columns:
        found = {name: rows[name] for name in self.asked.names or ()}
        if self.kind == "many":
            return {name: np.unpackbits(one, axis=1, count=len(self.labels)).astype(bool) for name, one in found.items()}
        return found

    @property
    def metrics(self) -> dict[str, Metric]:
        """Those that mean something here: F1 of the second label is of two, the shares of questions without answer where there are any."""
        some = offered(self.kind, len(self.labels))
        if self.kind == "spans" and self.rows["answerable"].all():
            some = {name: some[name] for name in ("f1", "exact")}
        return some

    def values(self) -> dict[str, float]:
        columns = self.columns(self.rows)
        found = {name: float(metric(columns, None)) for name, metric in self.metrics.items()}
        return found | ({"loss": float(self.rows["loss"].mean(dtype=np.float64))} if self._losses else {})

    @property
    def _losses(self) -> bool:
        return bool(np.isfinite(self.rows["loss"]).all())

    def intervals(self, resamples: int = RESAMPLES, seed: int = 0) -> dict[str, Interval]:
        """Every metric with its 95% interval. Examples that are alike to the metrics are resampled together."""
        (rows,), often = _distinct(self)
        columns = self.columns(rows)
        found = intervals({name: partial(metric, columns) for name, metric in self.metrics.items()}, often, resamples, seed=seed)
        for name in ("accuracy", "exact"):
            if name in found and found[name].low == found[name].high:
                found[name] = share(round(found[name].value * len(self)), len(self))
        if self._losses:
            losses = self.rows["loss"].astype(np.float64)
            found |= intervals({"loss": partial(scores.mean, losses)}, np.ones(len(self)), resamples, seed=seed)
        return found

    def table(self) -> dict[str, Line]:
        """Of one, many and tagging: how often each label was right, is true and was said."""
        self._only("table of labels", "one", "many", "tagging")
        if self.kind == "tagging":
            return self.entities.lines()
        columns = self.columns(self.rows)
        if self.kind == "many":
            found = scores.counts(columns["gold"], columns["said"])
            right, gold, said = found.right, found.gold, found.said
        else:
            size = len(self.labels)
            gold, said = (np.bincount(columns[name], minlength=size) for name in ("gold", "said"))
            right = np.bincount(columns["gold"][same(columns)], minlength=size)
        return {label: Line(int(right[i]), int(gold[i]), int(said[i])) for i, label in enumerate(self.labels)}

    def confusion(self, most: int = 24) -> tuple[tuple[str, ...], Array]:
        """(what is true, what was said) counted, and the labels; with more than `most` of them, those most often taken for another, and the rest as one."""
        self._only("confusion matrix", "one")
        columns, size = self.columns(self.rows), len(self.labels)
        labels, place = self.labels, np.arange(size)
        if size > most:
            table = self.table().values()
            wrong = np.argsort([2 * line.right - line.gold - line.said for line in table], kind="stable")
            chosen = np.sort(wrong[: most - 1])
            labels = (*(self.labels[i] for i in chosen), f"{size - len(chosen)} others")
            place = np.full(size, len(chosen))
            place[chosen] = np.arange(len(chosen))
        cells = place[columns["gold"]] * len(labels) + place[columns["said"]]
        return labels, np.bincount(cells, minlength=len(labels) ** 2).reshape(len(labels), len(labels))

    def _only(self, what: str, *kinds: str) -> None:
        if self.kind not in kinds:
            raise UserError(f"there is no {what} of answers of the kind {self.kind}, only of {' and '.join(kinds)}")

    def right(self) -> Array:
        if self.shape.right is None:
            raise UserError(f"an answer of the kind {self.kind} is near or far, not right or wrong")
        return self.shape.right(self.columns(self.rows))

    def reliability(self, bins: int = 15, adaptive: bool = False) -> list[Bin]:
        chances = self.rows["chance"]
        if np.isnan(chances).any():
            raise UserError("the probabilities of the answers are not known, so there is no calibration to tell; add them with chance=")
        return reliability(chances, self.right(), bins, adaptive)

    def worst(self) -> list[Worst]:
        """Those with the highest loss, the worst first; of equals the first seen."""
        return [Worst(loss, example) for loss, _, example in sorted(self.heap, key=lambda one: (-one[0], -one[1]))]


def _distinct(*tallies: Tally) -> tuple[list[Array], Array]:
    """The rows of one or more tallies that differ in what metrics ask for, and how often each occurs."""
    asked = [tally.rows[list(tally.asked.names or ())].astype(tally.asked) for tally in tallies]
    whole = np.concatenate([one.view(np.uint8).reshape(len(one), -1) for one in asked], 1)
    _, first, often = np.unique(whole.view(np.dtype((np.void, whole.shape[1]))).ravel(), return_index=True, return_counts=True)
    return [one[first] for one in asked], often


@dataclass(frozen=True)
class Comparison:
    differences: Mapping[str, Difference]
    mcnemar: McNemar | None  # where answers are right or wrong


def compare(first: Tally, second: Tally, resamples: int = RESAMPLES, seed: int = 0) -> Comparison:
    """The second model against the first, on the same examples in the same order."""
    if (first.kind, first.labels, len(first), first.fingerprint) != (second.kind, second.labels, len(second), second.fingerprint):
        raise UserError("the two models were not measured on the same examples with the same labels; evaluate both on one file")
    (mine, theirs), often = _distinct(first, second)
    columns, others = first.columns(mine), second.columns(theirs)
    metrics = {name: metric for name, metric in second.metrics.items() if name in first.metrics}
    found = differences(
        {name: partial(metric, columns) for name, metric in metrics.items()},
        {name: partial(metric, others) for name, metric in metrics.items()},
        often,
        resamples,
        seed=seed,
    )
    return Comparison(found, None if first.shape.right is None else mcnemar(first.right(), second.right()))
