"""Classify a text, a pair of texts or a picture: one label, several, or a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unmask.tasks.base import Answer, Array, Input, Task, Window, softmax


@dataclass(frozen=True)
class Class(Answer):
    label: str
    score: float
    scores: Mapping[str, float]  # of every label, the best first

    def __str__(self) -> str:
        return f"{self.label} {self.score:.3f}"


@dataclass(frozen=True)
class Classes(Answer):
    """Where several labels may hold at once: those over their threshold."""

    labels: tuple[str, ...]
    scores: Mapping[str, float]

    def __str__(self) -> str:
        return ", ".join(f"{label} {self.scores[label]:.3f}" for label in self.labels) or "none"


@dataclass(frozen=True)
class Number(Answer):
    value: float

    def __str__(self) -> str:
        return f"{self.value:.4f}"


@dataclass(frozen=True)
class Numbers(Answer):
    """Where the model was trained on several numbers at once."""

    values: Mapping[str, float]

    def __str__(self) -> str:
        return ", ".join(f"{label} {value:.4f}" for label, value in self.values.items())


class Classify(Task):
    head = "classify"
    over = "texts"
    pairs = None

    def decode(self, given: Input, windows: Sequence[Window], outputs: Sequence[Array]) -> Class | Classes | Number | Numbers:
        logits, card = outputs[0], self.card
        if card.kind == "number":
            values = [float(value) for value in logits]
            return Number(values[0]) if len(values) == 1 else Numbers(dict(zip(card.labels, values, strict=True)))
        single = len(logits) == 1  # a lone logit is a yes or no, as rerankers give it
        chances = _sigmoid(logits) if card.kind == "many" or single else softmax(logits)
        order = np.argsort(-chances, kind="stable")
        scores = {card.labels[i]: float(chances[i]) for i in order}
        if card.kind == "many":
            return Classes(tuple(label for label, score in scores.items() if score >= card.thresholds.get(label, 0.5)), scores)
        best = next(iter(scores))
        return Class(best, scores[best], scores)


def _sigmoid(logits: Array) -> Array:
    return np.exp(-np.logaddexp(0, -logits))  # 1 / (1 + exp(-x)) overflows below -88
