"""Next sentence: does the second text follow the first (Devlin et al. 2018, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unmask.tasks.base import Answer, Array, Input, Task, Window, softmax


@dataclass(frozen=True)
class Follows(Answer):
    follows: bool
    score: float  # the probability that it does

    def __str__(self) -> str:
        return f"{'follows' if self.follows else 'does not follow'} ({self.score:.3f})"


class Next(Task):
    head = "next"
    over = "texts"
    pairs = True

    def decode(self, given: Input, windows: Sequence[Window], outputs: Sequence[Array]) -> Follows:
        score = float(softmax(outputs[0])[0])  # column 0 means "is next", in the published weights and ever since
        return Follows(score >= 0.5, score)
