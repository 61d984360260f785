"""Entities as CoNLL counts them: one is right where its start, its end and its label are.

An entity is a (start, end, label) of a text, in characters or words. Tags are made into entities by `tagging.entities`, which reads
IOB1, IOB2 and IOBES as seqeval's default mode does, broken ones too (I after O, or after another label, begins an entity), and
knows marks that seqeval does not (M, L and U).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from unmask.tasks.metrics.scores import Array, Value, ratio

Entity = tuple[int, int, str]


@dataclass(frozen=True)
class Line:
    """One line of a table: how often a label was right, is true and was said."""

    right: int
    gold: int
    said: int

    @property
    def precision(self) -> float:
        return float(ratio(self.right, self.said))

    @property
    def recall(self) -> float:
        return float(ratio(self.right, self.gold))

    @property
    def f1(self) -> float:
        return float(ratio(2 * self.right, self.gold + self.said))


def overlap(gold: Iterable[Entity], said: Iterable[Entity]) -> Line:
    """Of one text."""
    gold, said = set(gold), set(said)
    return Line(len(gold & said), len(gold), len(said))


@dataclass(frozen=True)
class Table:
    """How often each label was right, is true and was said, over the texts added so far."""

    right: Counter[str] = field(default_factory=Counter)
    gold: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)

    def add(self, gold: Iterable[Entity], said: Iterable[Entity]) -> None:
        gold, said = set(gold), set(said)
        for counted, some in ((self.right, gold & said), (self.gold, gold), (self.said, said)):
            counted.update(label for *_, label in some)

    def lines(self) -> dict[str, Line]:
        return {label: Line(self.right[label], self.gold[label], self.said[label]) for label in sorted(self.gold | self.said)}


def entity_table(gold: Sequence[Iterable[Entity]], said: Sequence[Iterable[Entity]]) -> dict[str, Line]:
    table = Table()
    for true, told in zip(gold, said, strict=True):
        table.add(true, told)
    return table.lines()


def entity_f1(gold: Sequence[Iterable[Entity]], said: Sequence[Iterable[Entity]], weights: Array | None = None) -> Value:
    """Micro F1 over all texts; `weights` count texts, because the entities of one stand and fall together."""
    lines = [overlap(true, told) for true, told in zip(gold, said, strict=True)]
    right, true, told = (np.array([getattr(line, name) for line in lines], np.float64) for name in ("right", "gold", "said"))
    return overlap_f1(right, true, told, weights)


def overlap_f1(right: Array, gold: Array, said: Array, weights: Array | None = None) -> Value:
    return ratio(2 * _sum(right, weights), _sum(gold, weights) + _sum(said, weights))


def overlap_precision(right: Array, gold: Array, said: Array, weights: Array | None = None) -> Value:
    return ratio(_sum(right, weights), _sum(said, weights))


def overlap_recall(right: Array, gold: Array, said: Array, weights: Array | None = None) -> Value:
    return ratio(_sum(right, weights), _sum(gold, weights))


def _sum(values: Array, weights: Array | None) -> Value:
    return values.sum() if weights is None else weights @ values.astype(np.float64)
