"""Masked words (Devlin et al. 2018, section 3.1): 15% of the pieces are to be guessed; of those 80% read [MASK], 10% another piece, 10% themselves.

Which ones is a function of (seed, epoch, sample, position). Whole words and spans are chosen as wholes, and each piece of them is then
masked, replaced or kept by its own chance, so that 80/10/10 holds for them as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from unmask.data.batch import Batch
from unmask.data.keys import below, hashed, key, uniform
from unmask.data.stream import Rows
from unmask.errors import UserError
from unmask.objectives.base import Frame, Learner, Objective, Pieces, filled

Numbers = np.ndarray[Any, np.dtype[Any]]
UNITS = ("piece", "word", "span")
LONGEST_SPAN, STOP = 10, 0.2  # words of a span, its length geometric (Joshi et al. 2019, section 3.1)


@dataclass(frozen=True)
class MLM(Objective):
    """`rate` of the pieces are asked, falling or rising to `until` over the run where that is given; evaluation asks 15% of single pieces, always."""

    rate: float = 0.15
    until: float | None = None
    unit: Literal["piece", "word", "span"] = "piece"
    mask: float = 0.8
    other: float = 0.1

    terms: ClassVar[tuple[str, ...]] = ("words",)
    pieces: ClassVar[tuple[str, ...]] = ("words",)

    def heads(self, vocabulary: int) -> dict[str, int]:
        return {"words": vocabulary}

    def called(self) -> dict[str, str]:
        return {"words": "masked words"}

    def asks(self, frame: Frame) -> Masking:
        if frame.fixed:
            return Masking(frame.pieces, seed=frame.seed)
        return Masking(frame.pieces, self.rate, self.unit, self.mask, self.other, frame.seed, self.until)

    def losses(self, learner: Learner, states: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The word head reads the rows that were asked, and no other."""
        rows = batch.layout.tokens(states)[batch.targets["words.rows"]]
        loss, right = learner.words(learner.model.heads["words"], rows, batch.targets["words.labels"])
        return {"words": loss, "words.right": right}


@dataclass(frozen=True)
class Masking:
    """`mask` and `other` are the shares of what is chosen that read [MASK], and any other piece; the rest read themselves."""

    pieces: Pieces
    rate: float = 0.15
    unit: str = "piece"
    mask: float = 0.8
    other: float = 0.1
    seed: int = 0
    until: float | None = None

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise UserError(f"masks are of no unit {self.unit!r}; they are of {', '.join(UNITS)}")
        rates = [self.rate, *([] if self.until is None else [self.until])]
        if not all(0 < rate < 1 for rate in rates) or not (self.mask >= 0 and self.other >= 0 and self.mask + self.other <= 1):
            raise UserError(
                f"a rate of {self.rate} with shares of {self.mask} and {self.other} cannot be; a rate lies between 0 and 1, shares make up 1 at most"
            )

    def ask(self, rows: Rows, epoch: int, share: float = 0.0) -> tuple[Numbers, Mapping[str, Numbers]]:
        """What the model is shown; the rows to answer and their labels, filled up to a number that depends on the number of tokens alone."""
        if self.until is not None:
            now = max(0.01, round(self.rate + (self.until - self.rate) * share, 2))  # in steps of a hundredth, so that few shapes come of it
            return replace(self, rate=now, until=None).ask(rows, epoch)
        bits = hashed(key(self.seed, "mask", epoch), rows.samples, rows.positions)
        places = np.flatnonzero(self.chosen(rows, bits) & rows.given)
        places = places[~self.pieces.special[rows.tokens[places]]]
        way = uniform(hashed(bits[places], np.uint64(1)))
        shown = rows.tokens.copy()
        shown[places[way < self.mask]] = self.pieces.mask
        put = places[(way >= self.mask) & (way < self.mask + self.other)]
        shown[put] = self.pieces.plain[below(hashed(bits[put], np.uint64(2)), len(self.pieces.plain))]
        size = max(self.most(len(rows.tokens)), len(places))
        return shown, filled("words", places, rows.tokens[places], size)

    def most(self, tokens: int) -> int:
        """More rows than this are chosen once in a billion batches, so that shapes stay what they are."""
        spread = 6 * (tokens * self.rate * (1 - self.rate)) ** 0.5 * {"piece": 1.0, "word": 1.6, "span": 4.0}[self.unit]
        return min(tokens, -(-int(tokens * self.rate + spread) // 8) * 8)

    def chosen(self, rows: Rows, bits: Numbers) -> Numbers:
        if self.unit == "piece":
            return uniform(bits) < self.rate
        first = self._first(rows)
        if self.unit == "word":
            return (uniform(bits) < self.rate)[first]
        return self._spans(rows, bits, first)

    def _first(self, rows: Rows) -> Numbers:
        """For each piece, the place of the first one of its word."""
        places = np.arange(len(rows.tokens))
        begins = ~self.pieces.inner[rows.tokens] | ~rows.given
        begins |= np.concatenate([[True], ~rows.given[:-1]])  # a text that was cut may begin inside a word
        return np.maximum.accumulate(np.where(begins, places, 0))

    def _spans(self, rows: Rows, bits: Numbers, first: Numbers) -> Numbers:
        """Runs of whole words; a word is chosen if a run that began at it, or at one of the nine before it, reaches so far."""
        begins = np.flatnonzero(first == np.arange(len(first)))  # one a word
        lengths = 1 + np.floor(np.log1p(-uniform(hashed(bits[begins], np.uint64(3)))) / np.log1p(-STOP)).astype(np.int64)
        starts = uniform(bits[begins]) < self._start
        reach = np.where(starts, np.minimum(lengths, LONGEST_SPAN), 0)
        wall = ~rows.given[begins]  # a run does not go over [SEP], but may have begun before it: else the first words were chosen less
        reach[wall] = 1 + self._begun_before(bits[begins][wall])
        sequence = np.cumsum(wall)
        covered = np.zeros(len(begins), bool)
        for back in range(min(LONGEST_SPAN, len(begins))):
            here = reach[: len(begins) - back] > back
            covered[back:] |= here & (sequence[back:] == sequence[: len(begins) - back])
        return covered[np.searchsorted(begins, first)]

    def _begun_before(self, bits: Numbers) -> Numbers:
        """How many words after a wall belong to runs that would have begun up to nine words before it."""
        found = np.zeros(len(bits), np.int64)
        for back in range(1, LONGEST_SPAN):
            one = hashed(bits, np.uint64(10 + back))
            length = 1 + np.floor(np.log1p(-uniform(hashed(one, np.uint64(3)))) / np.log1p(-STOP)).astype(np.int64)
            found = np.maximum(found, np.where(uniform(one) < self._start, np.minimum(length, LONGEST_SPAN) - back, 0))
        return found

    @cached_property
    def _start(self) -> float:
        """The chance that a span begins at a word, so that the share of words in one comes to be the rate."""
        reaching = [(1 - STOP) ** back for back in range(LONGEST_SPAN)]  # the chance that a span is longer than that
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            free = float(np.prod([1 - middle * chance for chance in reaching]))
            low, high = (middle, high) if 1 - free < self.rate else (low, middle)
        return low
