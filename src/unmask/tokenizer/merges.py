"""Words as symbols, joined pair by pair, and the two ways to say which pair is the best.

Everything is whole numbers, and of pairs that are equally good the one of the oldest symbols comes first: so the same words give
the same pieces on every machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

ENDS, JOINED = -1, -2  # no symbol: what stands between words or inside a symbol; a symbol that was just made
LONGEST_PIECE = 64  # letters
SHIFT, MASK = 32, (1 << 32) - 1  # a pair is one number: left << SHIFT | right


class Segments:
    """All words as the symbols they are made of now, end to end: a symbol lies where its first letter was, and knows its neighbours."""

    def __init__(self, symbols: Array, weights: Array, kinds: int) -> None:
        self.symbols, self.weights = symbols, weights
        self.following = np.arange(1, len(symbols) + 1, dtype=np.int32)
        self.preceding = np.arange(-1, len(symbols) - 1, dtype=np.int32)
        order = np.argsort(symbols, kind="stable").astype(np.int32)
        bounds = np.searchsorted(symbols[order], np.arange(kinds + 1))
        self.places: list[list[Array]] = [[order[start:end]] for start, end in itertools.pairwise(bounds.tolist())]
        self.amounts = [int(weights[places].sum()) for (places,) in self.places]  # how often each symbol stands in the text

    def pairs(self) -> tuple[list[int], list[int]]:
        """Every pair of neighbours and how often it stands."""
        both = np.flatnonzero((self.symbols[:-1] >= 0) & (self.symbols[1:] >= 0))
        return _summed([self._keys(self.symbols[both], self.symbols[both + 1])], [self.weights[both]])

    def join(self, left: int, right: int, new: int) -> tuple[list[int], list[int]]:
        """Make one symbol of each such pair, in a run of equals from the left; by how much the number of every pair changed."""
        symbols, following, preceding = self.symbols, self.following, self.preceding
        at = self._found(left, right)
        gone = following[at]
        after, before, weights = following[gone], preceding[at], self.weights[at]
        old = symbols[after]
        symbols[at], symbols[gone] = JOINED, ENDS
        ends = symbols[before] >= 0  # else a word begins here, or this is the end of a pair just joined, which has told of it
        changed = [self._keys(left, right), self._keys(symbols[before[ends]], left), self._keys(right, old[old >= 0])]
        amounts = [-weights.sum(keepdims=True), -weights[ends], -weights[old >= 0]]
        following[at], preceding[after] = after, at
        one, other = symbols[preceding[at]], symbols[after]
        changed += [self._keys(np.where(one == JOINED, new, one)[one != ENDS], new), self._keys(new, other[other >= 0])]
        amounts += [weights[one != ENDS], weights[other >= 0]]
        symbols[at] = new
        self._move(left, right, new, at, int(weights.sum()))
        return _summed(changed, amounts)

    def _move(self, left: int, right: int, new: int, at: Array, amount: int) -> None:
        if new == len(self.places):
            self.places.append([])
            self.amounts.append(0)
        self.places[new].append(at)
        self.amounts[left] -= amount
        self.amounts[right] -= amount
        self.amounts[new] += amount

    def _found(self, left: int, right: int) -> Array:
        """Where the pair stands. Looked for from the rarer of the two; places where a symbol no longer stands are forgotten."""
        rarer = left if sum(map(len, self.places[left])) <= sum(map(len, self.places[right])) else right
        places = np.concatenate(self.places[rarer])
        places = places[self.symbols[places] == rarer]
        self.places[rarer] = [places]
        if rarer == left:
            at = places[self.symbols[self.following[places]] == right]
        else:
            at = self.preceding[places]
            at = at[self.symbols[at] == left]
        if left != right or len(at) < 2:
            return at
        at = np.sort(at)
        starts = np.flatnonzero(np.append(True, self.following[at[:-1]] != at[1:]))
        run = np.repeat(starts, np.diff(np.append(starts, len(at))))
        return at[(np.arange(len(at)) - run) % 2 == 0]

    @staticmethod
    def _keys(left: Array | int, right: Array | int) -> Array:
        return np.atleast_1d(np.left_shift(np.asarray(left, np.int64), SHIFT) | np.asarray(right, np.int64))


def _summed(keys: list[Array], amounts: list[Array]) -> tuple[list[int], list[int]]:
    """Each pair once, with the sum of its amounts."""
    pairs, sums = np.concatenate(keys), np.concatenate(amounts)
    if not len(pairs):
        return [], []
    order = np.argsort(pairs)
    pairs = pairs[order]
    starts = np.flatnonzero(np.append(True, pairs[1:] != pairs[:-1]))
    return pairs[starts].tolist(), np.add.reduceat(sums[order], starts).tolist()


class Ranking(Protocol):
    least: int

    def __init__(self, amounts: list[int], lengths: list[int], least: int) -> None: ...

    def change(self, pairs: list[int], amounts: list[int], touched: Iterable[int]) -> None:
        """These pairs stand so much more or less often, and so do the symbols that were touched."""

    def best(self) -> int | None:
        """The pair to join: of those that stand often enough and are not too long; of equals the one of the oldest symbols."""


class ByFrequency:
    """The pair that stands most often. The heap may hold old counts: they are never too low, and are set right on top."""

    def __init__(self, amounts: list[int], lengths: list[int], least: int) -> None:
        self.lengths, self.least = lengths, least
        self.counts: dict[int, int] = {}
        self.heap: list[tuple[int, int]] = []

    def change(self, pairs: list[int], amounts: list[int], touched: Iterable[int]) -> None:
        counts, heap = self.counts, self.heap
        first = not heap
        for pair, amount in zip(pairs, amounts, strict=True):
            number = counts.get(pair, 0) + amount
            if not number:
                counts.pop(pair, None)
                continue
            counts[pair] = number
            if amount > 0 and number >= self.least:
                if first:
                    heap.append((-number, pair))
                else:
                    heappush(heap, (-number, pair))
        if first:
            heapify(heap)

    def best(self) -> int | None:
        while self.heap:
            number, pair = self.heap[0]
            now = self.counts.get(pair, 0)
            if now < self.least or self.lengths[pair >> SHIFT] + self.lengths[pair & MASK] > LONGEST_PIECE:
                heappop(self.heap)
            elif now != -number:
                heapreplace(self.heap, (-now, pair))
            else:
                return pair
        return None


class ByLikelihood:
    """The pair that stands together most above chance: count(ab) / (count(a) * count(b)).

    When a symbol becomes rarer all its pairs gain. So each symbol keeps the score of the best pair that it begins, never too
    low; whichever is on top is computed anew before it is believed.
    """

    def __init__(self, amounts: list[int], lengths: list[int], least: int) -> None:
        self.amounts, self.lengths, self.least = amounts, lengths, least
        self.after: list[dict[int, int]] = []  # of each symbol, those that follow it and how often
        self.before: list[dict[int, int]] = []
        self.scores = np.zeros(0)
        self.rows = np.zeros((2, 0))  # amounts and lengths, to compute with

    def change(self, pairs: list[int], amounts: list[int], touched: Iterable[int]) -> None:
        while len(self.after) < len(self.amounts):
            self.after.append({})
            self.before.append({})
        if len(self.scores) < len(self.amounts):
            grown = max(len(self.amounts), 2 * len(self.scores))
            self.scores = np.append(self.scores, np.zeros(grown - len(self.scores)))
            self.rows = np.append(self.rows, np.ones((2, grown - self.rows.shape[1])), axis=1)
        for pair, amount in zip(pairs, amounts, strict=True):
            left, right = pair >> SHIFT, pair & MASK
            number = self.after[left].get(right, 0) + amount
            if number:
                self.after[left][right] = self.before[right][left] = number
            else:
                self.after[left].pop(right, None)
                self.before[right].pop(left, None)
        changed = set(touched)
        for symbol in changed:
            self.rows[:, symbol] = self.amounts[symbol], self.lengths[symbol]
        for symbol in changed:
            self.scores[symbol] = self._best_after(symbol)[0]
            others, scores = self._scored(symbol, self.before[symbol])
            self.scores[others] = np.maximum(self.scores[others], scores)

    def best(self) -> int | None:
        while True:
            left = int(self.scores.argmax())
            score, right = self._best_after(left)
            if score == 0 and self.scores[left] == 0:
                return None
            if score == self.scores[left]:
                return left << SHIFT | right
            self.scores[left] = score

    def _best_after(self, symbol: int) -> tuple[float, int]:
        right, scores = self._scored(symbol, self.after[symbol])
        if not len(right):
            return 0.0, 0
        best = scores.max()
        return float(best), int(right[scores == best].min())

    def _scored(self, symbol: int, others: dict[int, int]) -> tuple[Array, Array]:
        """The neighbours of a symbol and the scores of those pairs; 0 where one may not be joined."""
        found, together = np.fromiter(others.keys(), np.int64, len(others)), np.fromiter(others.values(), np.float64, len(others))
        amounts, lengths = self.rows[:, found]
        allowed = (together >= self.least) & (lengths + self.lengths[symbol] <= LONGEST_PIECE)
        return found, np.where(allowed, together / np.maximum(amounts * self.amounts[symbol], 1), 0)


RANKINGS: dict[str, type[Ranking]] = {"frequency": ByFrequency, "likelihood": ByLikelihood}
