"""Metrics over arrays of what is true (`gold`) and what was said, equal to scikit-learn's and scipy's.

Each takes `weights`: how often each example counts, in whole numbers. One row of them gives a number, several rows give one each; an
example that counts twice is as good as one that is there twice. That is all a bootstrap needs (`trust`). What is needed while a model
is trained works without scikit-learn. A metric that is not defined (a correlation with a constant) is 0: it must not be the best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unmask.data.places import extra
from unmask.errors import UserError

Array = np.ndarray[Any, np.dtype[Any]]
GROUPS = 4096  # they fit the nearest cache, which halves the time of a resample
Value = Any  # a number, or an array of one for each row of weights


def paired(gold: ArrayLike, said: ArrayLike) -> tuple[Array, Array]:
    first, second = np.asarray(gold), np.asarray(said)
    if len(first) != len(second):
        raise UserError(f"{len(first):,} true answers and {len(second):,} given ones cannot be compared; give as many of each")
    if not len(first):
        raise UserError("there is no example to measure; give one at least")
    return first, second


def ratio(above: Value, below: Value) -> Value:
    """above / below, and 0 where nothing is below."""
    above, below = np.broadcast_arrays(np.asarray(above, np.float64), np.asarray(below, np.float64))
    return np.divide(above, below, out=np.zeros(above.shape), where=below != 0)[()]


def mean(values: ArrayLike, weights: Array | None = None) -> Value:
    """Of a number an example, such as a loss or whether it was right."""
    values = np.asarray(values, np.float64)
    return values.mean() if weights is None else ratio(weights @ values, weights.sum(-1))


# ---- labels: one an example (names or numbers), or flags (examples, labels) where several may hold


@dataclass(frozen=True)
class Counts:
    """How often each label was right, is true and was said: labels on the last axis, rows of weights before it."""

    right: Array
    gold: Array
    said: Array
    total: Value
    flags: bool = False


def counts(gold: ArrayLike, said: ArrayLike, weights: Array | None = None) -> Counts:
    """Everything that F1 and Matthews need to know; labels in the order of `numpy.unique`, or of the flags."""
    gold, said = paired(gold, said)
    weights = np.ones(len(gold)) if weights is None else weights
    if gold.ndim == 2:
        gold, said = gold.astype(bool), said.astype(bool)
        right, true, told = (weights @ flags.astype(np.float64) for flags in (gold & said, gold, said))
        return Counts(right, true, told, weights.sum(-1), flags=True)
    labels, places = np.unique(np.concatenate([gold, said]), return_inverse=True)
    gold, said = np.split(places, 2)
    hit = gold == said

    def count(where: Array, some: Array) -> Array:
        return np.apply_along_axis(lambda row: np.bincount(where, row, len(labels)), -1, some)

    return Counts(count(gold[hit], weights[..., hit]), count(gold, weights), count(said, weights), weights.sum(-1))


def accuracy(gold: ArrayLike, said: ArrayLike, weights: Array | None = None) -> Value:
    """The share that was right; of flags, the share with every one of them right."""
    gold, said = paired(gold, said)
    return mean(gold == said if gold.ndim == 1 else (gold == said).all(1), weights)


def f1(gold: ArrayLike, said: ArrayLike, weights: Array | None = None, average: str = "macro") -> Value:
    """`average`: macro (all labels alike), weighted (by how many are true) or micro (of all labels' counts together)."""
    found = counts(gold, said, weights)
    if average == "micro":
        return ratio(2 * found.right.sum(-1), found.gold.sum(-1) + found.said.sum(-1))
    each = ratio(2 * found.right, found.gold + found.said)
    if average == "weighted":
        return ratio((each * found.gold).sum(-1), found.gold.sum(-1))
    if average != "macro":
        raise UserError(f"F1 is averaged by macro, micro or weighted, not by {average!r}; name one of them")
    there = np.ones_like(each) if found.flags else found.gold + found.said > 0  # a resample may lack a label
    return ratio(each.sum(-1), there.sum(-1))


def positive_f1(gold: ArrayLike, said: ArrayLike, weights: Array | None = None, positive: Any = 1) -> Value:
    """F1 of one label, as GLUE has it for MRPC and QQP."""
    gold, said = paired(gold, said)
    return f1((gold == positive)[:, None], (said == positive)[:, None], weights, "micro")


def matthews(gold: ArrayLike, said: ArrayLike, weights: Array | None = None) -> Value:
    """Matthews correlation, GLUE's for CoLA; of more than two labels, Gorodkin's (2004)."""
    found = counts(gold, said, weights)
    both = found.right.sum(-1) * found.total - (found.gold * found.said).sum(-1)
    spread = [found.total**2 - (one * one).sum(-1) for one in (found.gold, found.said)]
    return ratio(both, np.sqrt(np.maximum(spread[0], 0)) * np.sqrt(np.maximum(spread[1], 0)))


# ---- numbers


def pearson(gold: ArrayLike, said: ArrayLike, weights: Array | None = None) -> Value:
    gold, said = (_sized(one) for one in paired(gold, said))

    def one(row: Array) -> float:
        (x, wide), (y, tall) = _centred(gold, row), _centred(said, row)
        return float(ratio(row @ (x * y), wide * tall))

    return np.clip(_by_row(one, weights, len(gold)), -1, 1)


def _sized(values: Array) -> Array:
    """No larger than 1, so that no square overflows."""
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        return np.full(len(values), np.nan)
    return values / (np.abs(values).max() or 1)


def _centred(values: Array, weights: Array) -> tuple[Array, float]:
    """Less their mean, and the root of their summed squares: 0 where the values are the same but for rounding, as in a resample of one value."""
    centred = values - weights @ values / max(weights.sum(), 1)
    wide = float(np.sqrt(weights @ centred**2))
    return centred, 0.0 if wide <= 1e-13 * np.sqrt(weights @ values**2) else wide


def _by_row(metric: Callable[[Array], float], weights: Array | None, count: int) -> Value:
    """A metric that can only be had for one row of weights at a time."""
    return np.apply_along_axis(metric, -1, np.ones(count) if weights is None else weights)[()]


def spearman(gold: ArrayLike, said: ArrayLike, weights: Array | None = None) -> Value:
    """Pearson of the ranks, equal values sharing the middle of theirs. GLUE's for STS-B, with Pearson."""
    gold, said = paired(gold, said)
    if np.isnan(gold).any() or np.isnan(said).any():  # nan would be ranked as the largest of all
        return np.full(weights.shape[:-1] if weights is not None else (), np.nan)[()]
    first, second = (np.unique(one, return_inverse=True)[1] for one in (gold, said))
    if weights is not None and weights.ndim == 2:
        first, second = (_coarse(groups) for groups in (first, second))

    def one(row: Array) -> float:
        (sizes, ranks), (others, theirs) = _ranks(first, row), _ranks(second, row)
        both = (row * ranks[first]) @ theirs[second]
        return float(ratio(both, np.sqrt((sizes * ranks) @ ranks) * np.sqrt((others * theirs) @ theirs)))

    return np.clip(_by_row(one, weights, len(gold)), -1, 1)


def _coarse(groups: Array) -> Array:
    """At most `GROUPS`, for resamples: of more different values, those less than a 4,096th of the ranks apart share one.

    It moves the correlation by a few millionths. One value that many have keeps a rank of its own.
    """
    if groups.max() < GROUPS:
        return groups
    ranks = _ranks(groups, np.ones(len(groups)))[1]
    return ((ranks / len(groups) + 0.5) * GROUPS).astype(np.int64)[groups]


def _ranks(groups: Array, weights: Array) -> tuple[Array, Array]:
    """How many stand in each group of equal values, and the group's rank, counted from the middle of all."""
    sizes = np.bincount(groups, weights)
    ends = np.cumsum(sizes)
    return sizes, ends - 0.5 * (sizes + ends[-1])


def squared_error(gold: ArrayLike, said: ArrayLike, weights: Array | None = None) -> Value:
    gold, said = paired(gold, said)
    return mean((gold.astype(np.float64) - said) ** 2, weights)


def absolute_error(gold: ArrayLike, said: ArrayLike, weights: Array | None = None) -> Value:
    gold, said = paired(gold, said)
    return mean(np.abs(gold.astype(np.float64) - said), weights)


def r2(gold: ArrayLike, said: ArrayLike, weights: Array | None = None) -> Value:
    """The share of the variance that is explained; of a constant, 1 where it was hit and 0 where not."""
    gold, said = (one.astype(np.float64) for one in paired(gold, said))

    def one(row: Array) -> float:
        missed, wide = row @ (gold - said) ** 2, _centred(gold, row)[1]
        return float(1 - missed / wide**2) if wide else float(missed == 0)

    return _by_row(one, weights, len(gold))


# ---- scores of every label: logits or probabilities (examples, labels)


def top(gold: ArrayLike, scores: ArrayLike, weights: Array | None = None, k: int = 5) -> Value:
    """The share whose label is among the k with the highest scores; of equal scores the first label is the higher, as argmax has it."""
    gold, scores = paired(gold, scores)
    own = np.take_along_axis(scores, gold[:, None], 1)
    before = np.arange(scores.shape[1]) < gold[:, None]
    return mean(((scores > own) | ((scores == own) & before)).sum(1) < k, weights)


def log_loss(gold: ArrayLike, chances: ArrayLike, weights: Array | None = None) -> Value:
    """Minus the mean log of the probability of what is true; one that was said to be impossible counts as float64's epsilon."""
    gold, chances = paired(gold, chances)
    least = np.finfo(np.float64).eps
    own = np.take_along_axis(chances, gold[:, None], 1)[:, 0] if chances.ndim == 2 else np.where(gold.astype(bool), chances, 1 - chances)
    return mean(-np.log(np.clip(own.astype(np.float64), least, 1 - least)), weights)


def roc_area(gold: ArrayLike, scores: ArrayLike, weights: Array | None = None) -> Value:
    """Area under ROC of a yes or no; of several labels, the mean over those that are sometimes true and sometimes not."""
    return _by_label("roc_auc_score", "the area under ROC", gold, scores, weights, lambda flags: 0 < flags.sum() < len(flags))


def average_precision(gold: ArrayLike, scores: ArrayLike, weights: Array | None = None) -> Value:
    """Area under precision over recall; of several labels, the mean over those that are ever true."""
    return _by_label("average_precision_score", "the average precision", gold, scores, weights, lambda flags: flags.any())


def _by_label(name: str, what: str, gold: ArrayLike, scores: ArrayLike, weights: Array | None, defined: Callable[[Array], Any]) -> Value:
    """scikit-learn's metric of each label, and the mean of those."""
    measure = getattr(extra("sklearn.metrics", what, "study"), name)
    gold, scores = paired(gold, scores)
    if scores.ndim == 1:
        gold, scores = gold[:, None], scores[:, None]
    flags = gold.astype(bool) if gold.ndim == 2 else gold[:, None] == np.arange(scores.shape[1])

    def one(row: Array) -> float:
        there = row > 0
        labels = [i for i in range(flags.shape[1]) if defined(flags[there, i])]
        values = [measure(flags[there, i], scores[there, i], sample_weight=row[there]) for i in labels]
        return float(np.mean(values)) if values else 0.0

    return _by_row(one, weights, len(gold))


def best_thresholds(gold: ArrayLike, chances: ArrayLike) -> Array:
    """For each label the threshold with the highest F1 (said is what reaches it), to be found on validation, never on the test set.

    It stands in the middle of the gap between two chances; of cuts that are equally good, the one nearest to a half. A label that
    is never true keeps a half.
    """
    gold, chances = paired(gold, chances)
    return np.array([_best_threshold(gold[:, i].astype(bool), chances[:, i]) for i in range(gold.shape[1])])


def _best_threshold(gold: Array, chances: Array) -> float:
    if not gold.any():
        return 0.5
    order = np.argsort(-chances, kind="stable")
    values, right = chances[order].astype(np.float64), np.cumsum(gold[order])
    cuts = np.flatnonzero(np.append(values[1:] != values[:-1], True))  # equal chances are on one side
    scores = 2 * right[cuts] / (cuts + 1 + gold.sum())
    below = np.append(values, 0.0)[cuts + 1]
    middles = (values[cuts] + below) / 2
    middles = np.where(middles > below, middles, values[cuts])  # neighbouring floats have no middle
    best = np.flatnonzero(scores == scores.max())
    return float(middles[best][np.argmin(np.abs(middles[best] - 0.5))])
