"""Choose which of several endings fits a prompt best, as models fine-tuned for multiple choice were taught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.tasks.base import Answer, Array, Task, Window, softmax


@dataclass(frozen=True)
class Chosen(Answer):
    ending: str
    number: int  # its place among those given, from 0
    score: float
    scores: tuple[float, ...]  # of every ending, in the order given

    def __str__(self) -> str:
        return f"{self.ending} {self.score:.3f}"


class Choice(Task):
    """Each ending is read behind its prompt, alone; the scores sum to one over those given."""

    head = "choice"
    over = "texts"
    pairs = True
    several = True

    def windows(self, inputs: Sequence[Any]) -> list[Window]:
        owners = [(i, prompt, ending) for i, (prompt, endings) in enumerate(inputs) for ending in endings]
        encodings = self.pieces.encode([(prompt, ending) for _, prompt, ending in owners], length=self.card.length)
        return [Window(encoding, i) for encoding, (i, _, _) in zip(encodings, owners, strict=True)]

    def decode(self, given: Any, windows: Sequence[Window], outputs: Sequence[Array]) -> Chosen:
        chances = softmax(np.concatenate(outputs))
        best = int(chances.argmax())
        return Chosen(given[1][best], best, float(chances[best]), tuple(map(float, chances)))
