"""Tag the words of a text: whole entities, with the characters they stand at. Long texts are read in windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unmask.errors import UserError
from unmask.tasks.base import Answer, Array, Input, Task, Window, owned, softmax


@dataclass(frozen=True)
class Entity(Answer):
    label: str
    start: int  # text[start:end]
    end: int
    text: str
    score: float


@dataclass(frozen=True)
class Word:
    start: int
    end: int
    label: str
    score: float


class Tagging(Task):
    head = "tag"
    over = "tokens"
    pairs = False

    def windows(self, inputs: Sequence[str | tuple[str, str]]) -> list[Window]:
        card = self.card
        stride = min(card.windows, card.length // 2) if card.length else 0
        return owned(self.pieces.encode(inputs, length=card.length, stride=stride, offsets=True))

    def decode(self, given: Input, windows: Sequence[Window], outputs: Sequence[Array]) -> list[Entity]:
        text = str(given)
        return [Entity(label, start, end, text[start:end], score) for label, start, end, score in entities(self._words(windows, outputs))]

    def _words(self, windows: Sequence[Window], outputs: Sequence[Array]) -> list[Word]:
        """A word's label is its first piece's (Devlin et al. 2018, section 5.3), from the window that shows most around it."""
        best: dict[int, tuple[int, Word]] = {}  # by the word's start: how much context it had, and what it was
        for window, logits in zip(windows, outputs, strict=True):
            if logits.shape[-1] != len(self.card.labels):
                raise UserError(f"the head gives {logits.shape[-1]} labels, the folder names {len(self.card.labels)}")
            encoding, chances = window.encoding, softmax(logits)
            words, offsets = encoding.word_ids, encoding.offsets
            for place, word in enumerate(words):
                if word is None:
                    continue
                start = offsets[place][0]
                if place > 0 and words[place - 1] == word:
                    continue
                last = place
                while last + 1 < len(words) and words[last + 1] == word:
                    last += 1
                context = min(place, len(words) - 1 - last)
                label = int(np.argmax(chances[place]))
                found = Word(start, offsets[last][1], self.card.labels[label], float(chances[place, label]))
                if start not in best or context > best[start][0]:
                    best[start] = (context, found)
        return [word for _, (_, word) in sorted(best.items())]


def entities(words: Sequence[Word]) -> list[tuple[str, int, int, float]]:
    """(label, start, end, score) of runs of words, in IOB1, IOB2 and IOBES alike, or of bare labels; O is no entity.

    A run ends where the label changes, where B- or S- begins a new one, and after E- or S-.
    """
    found: list[tuple[str, int, int, float]] = []
    run: list[Word] = []

    def close() -> None:
        if run:
            score = float(np.mean([word.score for word in run]))
            found.append((_split(run[0].label)[1], run[0].start, run[-1].end, score))
            run.clear()

    for word in words:
        mark, label = _split(word.label)
        if mark == "O":
            close()
            continue
        if run and (mark in "BSU" or _split(run[-1].label)[1] != label):
            close()
        run.append(word)
        if mark in "ESLU":
            close()
    close()
    return found


def _split(label: str) -> tuple[str, str]:
    """B-PER -> (B, PER); O -> (O, ""); a bare PER counts as I-PER."""
    if label == "O":
        return "O", ""
    mark, dash, rest = label.partition("-")
    return (mark, rest) if dash and mark in ("B", "I", "E", "S", "L", "U") else ("I", label)
