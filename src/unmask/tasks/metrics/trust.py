"""How far a metric can be trusted: bootstrap intervals, and whether one model is better than another on the same examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from unmask.data.places import extra
from unmask.errors import UserError
from unmask.tasks.metrics.scores import Array, paired

Statistic = Callable[[Array], Any]  # a metric as a function of how often each example counts: (resamples, examples) -> (resamples,)
RESAMPLES = 1000
AT_ONCE = 1 << 23  # numbers: 64 MB of weights


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


@dataclass(frozen=True)
class Difference:
    """The second model's metric less the first's; `p` is how often chance alone makes as much of a difference, to either side."""

    value: float
    low: float
    high: float
    p: float

    def __str__(self) -> str:
        return f"{self.value:+.4f} [{self.low:+.4f}, {self.high:+.4f}], p = {self.p:.4g}"


def intervals(metrics: Mapping[str, Statistic], often: ArrayLike, resamples: int = RESAMPLES, level: float = 0.95, seed: int = 0) -> dict[str, Interval]:
    """Of each metric the percentile bootstrap's interval (Efron 1979); the same resamples for all of them.

    `often` says how many times each kind of example occurs: ones where each is its own, the cells of a confusion matrix where only
    those matter. A million examples in four cells are resampled by drawing four numbers.
    """
    values, drawn = _resampled(metrics, often, resamples, seed)
    return {name: Interval(values[name], *_middle(drawn[name], level)) for name in metrics}


def differences(
    first: Mapping[str, Statistic],
    second: Mapping[str, Statistic],
    often: ArrayLike,
    resamples: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, Difference]:
    """The paired bootstrap: both models on the same resamples, which takes out how hard the examples are."""
    metrics = {name: _less(first[name], second[name]) for name in first}
    values, drawn = _resampled(metrics, often, resamples, seed)
    return {name: Difference(values[name], *_middle(drawn[name], level), _chance(drawn[name])) for name in metrics}


def _less(first: Statistic, second: Statistic) -> Statistic:
    return lambda weights: second(weights) - first(weights)


def _resampled(metrics: Mapping[str, Statistic], often: ArrayLike, resamples: int, seed: int) -> tuple[dict[str, float], dict[str, Array]]:
    often = np.asarray(often, np.int64)
    if not often.sum():
        raise UserError("there is no example to measure; give one at least")
    values = {name: float(metric(often.astype(np.float64))) for name, metric in metrics.items()}
    parts = [{name: metric(weights) for name, metric in metrics.items()} for weights in _weights(often, resamples, seed)]
    return values, {name: np.concatenate([part[name] for part in parts]) for name in metrics}


def _weights(often: Array, resamples: int, seed: int) -> Iterator[Array]:
    """How often each example is drawn, a few resamples at a time: as many draws as there are examples, all equally likely."""
    draw, total = np.random.default_rng(seed), int(often.sum())
    owners = np.repeat(np.arange(len(often)), often) if len(often) < total else None
    for begin in range(0, resamples, step := max(1, AT_ONCE // len(often))):
        count = min(step, resamples - begin)
        if 16 * len(often) < total:  # one binomial draw a cell costs as much as sixteen draws of an example
            yield draw.multinomial(total, often / total, count).astype(np.float64)
            continue
        weights = np.empty((count, len(often)))
        for row in weights:
            places = draw.integers(0, total, total)
            row[:] = np.bincount(places if owners is None else owners[places], minlength=len(often))
        yield weights


def _middle(drawn: Array, level: float) -> tuple[float, float]:
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _chance(drawn: Array) -> float:
    """Two-sided, from the side of 0 that has the fewer resamples; never 0, which no number of resamples can show."""
    fewer = min((drawn <= 0).sum(), (drawn >= 0).sum())
    return min(1.0, 2 * (int(fewer) + 1) / (len(drawn) + 1))


def share(right: int, total: int, level: float = 0.95) -> Interval:
    """Wilson's interval (1927) for a share: where all or none of the examples were right, every resample is the same and shows nothing."""
    z, part = NormalDist().inv_cdf((1 + level) / 2), right / total
    middle = (part + z * z / (2 * total)) / (1 + z * z / total)
    reach = z / (1 + z * z / total) * math.sqrt(part * (1 - part) / total + z * z / (4 * total * total))
    return Interval(part, max(0.0, middle - reach), min(1.0, middle + reach))


@dataclass(frozen=True)
class McNemar:
    """How many examples only the first model got right, how many only the second, and how likely chance makes them that unlike."""

    first: int
    second: int
    p: float


def mcnemar(first: ArrayLike, second: ArrayLike) -> McNemar:
    """The exact test (McNemar 1947) of whether one of two models is right more often; what both or neither got right says nothing."""
    mine, theirs = (one.astype(bool) for one in paired(first, second))
    one, other = int((mine & ~theirs).sum()), int((theirs & ~mine).sum())
    test = extra("scipy.stats", "comparing two models", "study").binomtest
    return McNemar(one, other, float(test(one, one + other).pvalue) if one + other else 1.0)
