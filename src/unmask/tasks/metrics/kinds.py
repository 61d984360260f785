"""Which metrics there are for each kind of answer, by name, and in which form an example is kept for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.errors import UserError, near
from unmask.tasks.metrics import entities, scores
from unmask.tasks.metrics.scores import Array, Value

Columns = Mapping[str, Array]
Metric = Callable[[Columns, Array | None], Value]  # of the examples kept, and how often each counts
LOWER = frozenset({"squared_error", "absolute_error", "loss"})  # of these less is better
OVERLAP = ("right", "gold", "said")


@dataclass(frozen=True)
class Kind:
    fields: tuple[tuple[str, str], ...]
    metrics: Mapping[str, Metric]  # the first chooses the best checkpoint where nothing else is said
    loss: Callable[..., float]  # of the fields, where the model has no loss to give: the worst have most of it
    right: Callable[[Columns], Array] | None = None


def _of(metric: Callable[..., Value], *fields: str, **settings: Any) -> Metric:
    return lambda columns, weights: metric(*(columns[name] for name in fields), weights=weights, **settings)


def _where(field: str, answerable: bool) -> Metric:
    """The mean over the questions that have an answer, or that have none."""

    def metric(columns: Columns, weights: Array | None) -> Value:
        there = (columns["answerable"] == answerable).astype(np.float64)
        return scores.mean(columns[field], there if weights is None else weights * there)

    return metric


def _pairs(names: str) -> dict[str, Metric]:
    return {name: _of(getattr(scores, name), "gold", "said") for name in names.split()}


def _averages(names: str) -> dict[str, Metric]:
    return {f"{name}_f1": _of(scores.f1, "gold", "said", average=name) for name in names.split()}


def same(columns: Columns) -> Array:
    equal = columns["gold"] == columns["said"]
    return equal if equal.ndim == 1 else equal.all(1)


BOTH = (("gold", "u4"), ("said", "u4"))
NUMBERS = Kind((("gold", "f8"), ("said", "f8")), _pairs("spearman pearson squared_error absolute_error r2"), lambda gold, said: abs(gold - said))
KINDS: Mapping[str, Kind] = {
    "one": Kind(
        BOTH,
        _pairs("accuracy") | {"f1": _of(scores.positive_f1, "gold", "said")} | _averages("macro weighted") | _pairs("matthews"),
        lambda gold, said: float(gold != said),
        same,
    ),
    "many": Kind(
        BOTH,
        {"f1": _of(scores.f1, "gold", "said", average="micro")} | _averages("macro weighted") | _pairs("accuracy"),
        lambda gold, said: float((gold != said).sum()),
        same,
    ),
    "number": NUMBERS,
    "embed": NUMBERS,  # of a pair: how alike it is, and the cosine
    "choice": Kind(BOTH, _pairs("accuracy"), lambda gold, said: float(gold != said), same),
    "tagging": Kind(
        tuple((name, "u4") for name in OVERLAP),
        {name: _of(getattr(entities, f"overlap_{name}"), *OVERLAP) for name in ("f1", "precision", "recall")},
        lambda right, gold, said: float(gold + said - 2 * right),
        lambda columns: (columns["right"] == columns["gold"]) & (columns["right"] == columns["said"]),
    ),
    "spans": Kind(
        (("f1", "f8"), ("exact", "?"), ("answerable", "?")),
        {"f1": _of(scores.mean, "f1"), "exact": _of(scores.mean, "exact")}
        | {"f1_answerable": _where("f1", True), "exact_answerable": _where("exact", True), "unanswerable": _where("exact", False)},
        lambda f1, exact, answerable: 1 - f1,
        lambda columns: columns["exact"],
    ),
}


def offered(kind: str, labels: int = 2) -> dict[str, Metric]:
    """The metrics of that kind. F1 of the second label, which is the one that is looked for, is there where there are two."""
    if kind not in KINDS:
        raise UserError(f"there is no kind of answer {kind!r}{near(kind, KINDS)}")
    return {name: metric for name, metric in KINDS[kind].metrics.items() if (kind, name) != ("one", "f1") or labels == 2}


def named(kind: str, name: str = "", labels: int = 2) -> str:
    """A metric of that kind; with no name the one that chooses the best checkpoint."""
    known = offered(kind, labels)
    if name and name not in known:
        raise UserError(f"there is no metric {name!r} for the kind {kind}{near(name, known)}")
    return name or next(iter(known))
