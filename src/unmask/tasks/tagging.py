"""Tag the words of a text: whole entities, with the characters they stand at. Long texts are read in windows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.data.batch import Batch
from unmask.data.examples import Example, Examples
from unmask.data.samples import Sample
from unmask.errors import UserError
from unmask.model.card import Card
from unmask.objectives.base import Learner
from unmask.tasks.base import Answer, Array, Input, Task, Window, owned, softmax, spelled
from unmask.tasks.metrics.tally import Tally
from unmask.tasks.tuning import Outcome, Tuning, sample
from unmask.tokenizer import Encoding


@dataclass(frozen=True)
class Entity(Answer):
    label: str
    start: int  # text[start:end]
    end: int
    text: str
    score: float

    def __str__(self) -> str:
        return f"{self.label}: {self.text} [{self.start}:{self.end}] {self.score:.3f}"


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
        room = stride = 0
        if self.card.length:
            room = max(self.card.length - len(self.pieces.encode([""])[0]), 0)
            stride = min(self.card.windows, room // 2)
        encodings = self.pieces.encode(inputs, length=self.card.length, stride=stride, offsets=True)
        return [window for i, encoding in enumerate(encodings) for window in owned(encoding, i, room - stride)]

    def decode(self, given: Input, windows: Sequence[Window], outputs: Sequence[Array]) -> list[Entity]:
        text, words = str(given), self._words(windows, outputs)
        found = [(label, *spelled(text, start, end), score) for label, start, end, score in entities(words, marks(self.card.labels))]
        return [Entity(label, start, end, text[start:end], score) for label, start, end, score in found if start < end]

    def _words(self, windows: Sequence[Window], outputs: Sequence[Array]) -> list[Word]:
        """A word is what the tokenizer splits into pieces; its label is its first piece's (Devlin et al. 2018, section 5.3)."""
        words = []
        for _, group in groupby(self._pieces(windows, outputs), key=lambda piece: piece[0]):
            run = list(group)
            _, (start, _), chances = run[0]
            label = int(np.argmax(chances))
            words.append(Word(start, run[-1][1][1], self.card.labels[label], float(chances[label])))
        return words

    def _pieces(self, windows: Sequence[Window], outputs: Sequence[Array]) -> list[tuple[int, tuple[int, int], Array]]:
        """(word, characters, probabilities) of every piece of the text once, from the window that shows most around it."""
        best: dict[int, tuple[int, tuple[int, tuple[int, int], Array]]] = {}
        for window, logits in zip(windows, outputs, strict=True):
            if logits.shape[-1] != len(self.card.labels):
                raise UserError(f"the head gives {logits.shape[-1]} labels, the folder names {len(self.card.labels)}; correct id2label in config.json")
            words, offsets, chances = window.encoding.word_ids, window.encoding.offsets, softmax(logits)
            for place, word in enumerate(words):
                number, context = window.before + place, min(place, len(words) - 1 - place)
                if word is not None and (number not in best or context > best[number][0]):
                    best[number] = context, (word, offsets[place], chances[place])
        return [best[number][1] for number in sorted(best)]


def entities(words: Iterable[Word], said: Mapping[str, tuple[str, str]]) -> list[tuple[str, int, int, float]]:
    """(label, start, end, score) of runs of words. `said` is what `marks` makes of the labels.

    A run ends where the name changes, where B, S or U begins a new one, and after E, L, S or U.
    """
    found: list[tuple[str, int, int, float]] = []
    run: list[Word] = []

    def close() -> None:
        if run:
            found.append((said[run[0].label][1], run[0].start, run[-1].end, float(np.mean([word.score for word in run]))))
            run.clear()

    for word in words:
        mark, name = said[word.label]
        if mark == "O":
            close()
            continue
        if run and (mark in "BSU" or said[run[-1].label][1] != name):
            close()
        run.append(word)
        if mark in "ELSU":
            close()
    close()
    return found


def marks(labels: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Each label's mark and name: B-PER, or PER-B as Korean sets write it, -> (B, PER); bare PER -> (I, PER); O -> (O, "").

    IOB1, IOB2, IOBES, BMES and BILOU need no telling apart. What looks like a mark is one only where the whole set has them:
    E-mail among bare labels is a name.
    """
    labels = list(labels)
    before = any(label.startswith(("B-", "I-")) for label in labels)
    after = not before and any(label.endswith("-B") and f"{label[:-1]}I" in labels for label in labels)
    return {label: _split(label, before, after) for label in labels}


def _split(label: str, before: bool, after: bool) -> tuple[str, str]:
    if label == "O":
        return "O", ""
    if before and label[1:2] == "-" and label[0] in "BIESLUM":
        return label[0], label[2:]
    if after and label[-2:-1] == "-" and label[-1] in "BIESLUM":
        return label[-1], label[:-2]
    return "I", label


@dataclass(frozen=True)
class Taggings(Tuning):
    """A word's label is its first piece's, B- where an entity begins and I- where it goes on; the kinds of entities are the data's."""

    labels: tuple[str, ...] = ()

    terms: ClassVar[tuple[str, ...]] = ("tag",)

    def fitted(self, examples: Examples) -> Self:
        names = examples.labels()
        return self if self.labels else replace(self, labels=("O", *(f"{mark}-{name}" for name in names for mark in "BI")))

    def heads(self, vocabulary: int) -> dict[str, int]:
        return {"tag": len(self.labels)}

    def card(self, card: Card) -> Card:
        return replace(card, task="tagging", labels=self.labels)

    def carded(self, card: Card) -> Self:
        return replace(self, labels=card.labels)

    def tally(self) -> Tally:
        return Tally("tagging")

    def outcome(self, example: Example, answer: Any) -> Outcome:
        return Outcome([(mark.start, mark.end, mark.label) for mark in example.answer], [(one.start, one.end, one.label) for one in answer])

    def samples(self, asked: Task, examples: Iterable[Example]) -> Iterable[Sample]:
        chosen, numbers = list(examples), {label: i for i, label in enumerate(self.labels)}
        for window in asked.windows([example.given for example in chosen]):
            example = chosen[window.owner]
            rows, labels = [], []
            for place, start, end in _words(window.encoding):
                mark = next((mark for mark in example.answer if mark.start < end and start < mark.end), None)
                label = "O" if mark is None else f"{'B' if start <= mark.start else 'I'}-{mark.label}"
                if label not in numbers:
                    raise UserError(f"example {example.name} has an entity {mark.label!r}, which the others don't have")  # type: ignore[union-attr]
                rows.append(place)
                labels.append(numbers[label])
            yield sample([window.encoding], {"tag": np.array(labels, np.int64)}, {"tag": np.array(rows, np.int64)})

    def losses(self, learner: Learner, states: Tensor, batch: Batch) -> dict[str, Tensor]:
        labels = batch.targets["tag.labels"]
        logits = learner.model.read("tag", batch.layout.tokens(states)[batch.targets["tag.rows"]], batch.layout)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return {"tag": F.cross_entropy(logits, labels, reduction="sum"), "tag.right": (logits.detach().argmax(-1) == labels).sum()}


def _words(encoding: Encoding) -> Iterable[tuple[int, int, int]]:
    """Each word's first piece, and the characters from its first to its last."""
    pieces = [(word, place) for place, word in enumerate(encoding.word_ids) if word is not None]
    for _, group in groupby(pieces, key=lambda piece: piece[0]):
        places = [place for _, place in group]
        yield places[0], encoding.offsets[places[0]][0], encoding.offsets[places[-1]][1]
