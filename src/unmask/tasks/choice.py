"""Choose which of several endings fits a prompt best, as models fine-tuned for multiple choice were taught."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from unmask.data.batch import Batch
from unmask.data.examples import Example, Examples
from unmask.data.samples import Sample
from unmask.model.card import Card
from unmask.objectives.base import Learner
from unmask.tasks.base import Answer, Array, Task, Window, softmax
from unmask.tasks.metrics.tally import Tally
from unmask.tasks.tuning import Outcome, Tuning, among, sample


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


@dataclass(frozen=True)
class Choosing(Tuning):
    """A softmax over the endings of each prompt, however many it has."""

    terms: ClassVar[tuple[str, ...]] = ("choice",)

    def fitted(self, examples: Examples) -> Self:
        return self

    def heads(self, vocabulary: int) -> dict[str, int]:
        return {"choice": 1}

    def card(self, card: Card) -> Card:
        return replace(card, task="choice")

    def carded(self, card: Card) -> Self:
        return self

    def tally(self) -> Tally:
        return Tally("choice")

    def outcome(self, example: Example, answer: Any) -> Outcome:
        return Outcome(example.answer, answer.number, answer.score, -math.log(max(answer.scores[example.answer], 1e-30)))

    def given(self, example: Example) -> Any:
        return example.given[0], list(example.given[1])

    def samples(self, asked: Task, examples: Iterable[Example]) -> Iterable[Sample]:
        chosen = list(examples)
        windows = asked.windows([self.given(example) for example in chosen])
        for owner, group in groupby(windows, key=lambda window: window.owner):
            encodings = [window.encoding for window in group]
            # The number of endings stands beside the answer, so that a batch knows whose each row is.
            yield sample(encodings, {"choice": np.array([chosen[owner].answer]), "choice.endings": np.array([len(encodings)])})

    def losses(self, learner: Learner, states: Tensor, batch: Batch) -> dict[str, Tensor]:
        labels, counts = batch.targets["choice.labels"], batch.targets["choice.endings.labels"]
        logits = learner.model.read("choice", states, batch.layout).squeeze(-1)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        loss, right = among(logits[:, None], counts, labels[:, None])
        return {"choice": loss, "choice.right": right}
