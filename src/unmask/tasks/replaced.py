"""Say which words of a text were put in by a generator: what ELECTRA's discriminator learned to see (Clark et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from unmask.tasks.base import Answer, Array, Input, Task, Window, spelled


@dataclass(frozen=True)
class Word:
    text: str
    start: int
    end: int
    score: float  # the probability that it was put in: its most doubtful piece's


@dataclass(frozen=True)
class Doubts(Answer):
    """Every word of the text; `str` shows those more likely put in than not."""

    words: tuple[Word, ...]

    def __str__(self) -> str:
        return "  ".join(f"{word.text} {word.score:.3f}" for word in self.words if word.score >= 0.5) or "none"


class Replaced(Task):
    head = "replaced"
    over = "tokens"
    pairs = False

    def windows(self, inputs: Sequence[str | tuple[str, str]]) -> list[Window]:
        return [Window(encoding, i) for i, encoding in enumerate(self.pieces.encode(inputs, length=self.card.length, offsets=True))]

    def decode(self, given: Input, windows: Sequence[Window], outputs: Sequence[Array]) -> Doubts:
        text, encoding = str(given), windows[0].encoding
        chances = np.exp(-np.logaddexp(0, -outputs[0][:, 0]))
        places = [(word, place) for place, word in enumerate(encoding.word_ids) if word is not None]
        found = []
        for _, run in groupby(places, key=lambda pair: pair[0]):
            group = [place for _, place in run]
            start, end = spelled(text, encoding.offsets[group[0]][0], encoding.offsets[group[-1]][1])
            if start < end:
                found.append(Word(text[start:end], start, end, float(chances[group].max())))
        return Doubts(tuple(found))
