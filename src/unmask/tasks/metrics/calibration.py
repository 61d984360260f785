"""Calibration: whether what is said with 80% is right in 80% of cases (Guo et al. 2017), and the temperature that makes it so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from unmask.errors import UserError
from unmask.tasks.metrics.scores import Array, paired

COLDEST, HOTTEST = 1e-3, 1e3


@dataclass(frozen=True)
class Bin:
    """The examples whose answer had a probability above `low` and up to `high`."""

    low: float
    high: float
    count: int
    chance: float  # the mean probability that was said
    right: float  # the share that was right


def reliability(chances: ArrayLike, right: ArrayLike, bins: int = 15, adaptive: bool = False) -> list[Bin]:
    """By the probability of the answer that was given; `adaptive` bins hold about as many examples each, the others are equally wide.

    Bins without an example are left out. Equal probabilities fall into one bin, so the order of the examples does not matter.
    """
    chances, right = (one.astype(np.float64) for one in paired(chances, right))
    edges = np.linspace(0, 1, bins + 1)
    if adaptive:
        edges = np.unique(np.concatenate([[0.0], np.quantile(chances, edges[1:-1]), [1.0]]))
    place = np.clip(np.searchsorted(edges, chances, side="left") - 1, 0, len(edges) - 2)
    counts, said, hits = (np.bincount(place, weights, len(edges) - 1) for weights in (None, chances, right))
    return [
        Bin(float(edges[i]), float(edges[i + 1]), int(counts[i]), float(said[i] / counts[i]), float(hits[i] / counts[i]))
        for i in range(len(edges) - 1)
        if counts[i]
    ]


def calibration_error(found: Sequence[Bin]) -> float:
    """The expected one: how far the share that was right lies from the probability said, over the examples."""
    return sum(one.count * abs(one.right - one.chance) for one in found) / sum(one.count for one in found)


def brier(gold: ArrayLike, chances: ArrayLike) -> float:
    """Mean squared distance of the probabilities (examples, labels) from what is true (Brier 1950); of a yes or no, of its probability alone."""
    gold, chances = paired(gold, chances)
    if chances.ndim == 1:
        return float(np.mean((chances.astype(np.float64) - gold.astype(bool)) ** 2))
    return float(np.mean(((chances.astype(np.float64) - (gold[:, None] == np.arange(chances.shape[1]))) ** 2).sum(1)))


def temperature(logits: ArrayLike, gold: ArrayLike) -> float:
    """What to divide logits by so that the log loss is least, found on validation; it moves no answer, only how sure it is.

    The loss is convex in 1 / temperature: where its slope is 0 is found by halving. A validation set that is all right (or no better
    than chance) asks for no softness (or no end of it) and gets the end of the range.
    """
    true, found = paired(gold, logits)
    if not np.isfinite(found).all():
        raise UserError("the logits are not all finite, so no temperature suits them; look at the model that gave them")
    found = np.stack([np.zeros(len(found)), found], 1) if found.ndim == 1 else found.astype(np.float64)  # a lone logit is a yes or no
    found = found - found.max(1, keepdims=True)
    if not found.any():
        return 1.0  # every label is as likely as the next, at any temperature
    own = np.take_along_axis(found, true.astype(np.int64)[:, None], 1)[:, 0]
    low, high = np.log(COLDEST), np.log(HOTTEST)
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (low, middle) if _slope(found, own, np.exp(-middle)) <= 0 else (middle, high)
    return float(np.exp((low + high) / 2))


def _slope(logits: Array, own: Array, sharpness: float) -> float:
    """Of the log loss by 1 / temperature: what is expected of a logit, less what the true one's is."""
    chances = np.exp(logits * sharpness)
    return float(np.mean((chances * logits).sum(1) / chances.sum(1) - own))
