"""Classify a text, a pair of texts or a picture: one label, several, or a number."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.data.batch import Batch
from unmask.data.examples import Example, Examples
from unmask.data.samples import Sample
from unmask.errors import UserError, near
from unmask.model.card import Card
from unmask.objectives.base import Learner
from unmask.tasks.base import Answer, Array, Input, Task, Window, softmax
from unmask.tasks.metrics.tally import Tally
from unmask.tasks.tuning import Outcome, Tuning, sample


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


@dataclass(frozen=True)
class Classifying(Tuning):
    """`balanced` weighs rare labels more; `smoothing` is the share of a label that is spread over all. Labels and kind are the data's, unless said."""

    balanced: bool = False
    smoothing: float = 0.0
    labels: tuple[str, ...] = ()
    kind: Literal["", "one", "many", "number"] = ""
    weighing: tuple[float, ...] = ()  # of the labels; `balanced` has it from the data

    terms: ClassVar[tuple[str, ...]] = ("classify",)

    def fitted(self, examples: Examples) -> Self:
        kinds: dict[str, Literal["many", "number"]] = {"number": "number", "many": "many"}
        kind = self.kind or kinds.get(examples.answers, "one")
        labels = self.labels or (("score",) if kind == "number" else examples.labels())
        weighing = self.weighing
        if self.balanced and not weighing and kind == "one":
            found = Counter(example.answer for example in examples)
            weighing = tuple(sum(found.values()) / (len(labels) * max(found[label], 1)) for label in labels)
        return replace(self, labels=labels, kind=kind, weighing=weighing)

    def heads(self, vocabulary: int) -> dict[str, int]:
        return {"classify": len(self.labels)}

    def card(self, card: Card) -> Card:
        return replace(card, task="classify", labels=self.labels, kind=self.kind)

    def carded(self, card: Card) -> Self:
        return replace(self, labels=card.labels, kind=card.kind)  # type: ignore[arg-type]

    def tally(self) -> Tally:
        return Tally(self.kind or "one", () if self.kind == "number" else self.labels)

    def outcome(self, example: Example, answer: Any) -> Outcome:
        if isinstance(answer, Class):
            loss = -math.log(max(answer.scores.get(example.answer, 0.0), 1e-30))
            return Outcome(example.answer, answer.label, answer.score, loss)
        return Outcome(example.answer, answer.value if isinstance(answer, Number) else answer.labels)

    def samples(self, asked: Task, examples: Iterable[Example]) -> Iterable[Sample]:
        chosen = list(examples)
        for window in asked.windows([example.given for example in chosen]):
            yield sample([window.encoding], {"classify": self._label(chosen[window.owner])})

    def _label(self, example: Example) -> Any:
        if self.kind == "number":
            return np.array([example.answer], np.float32)
        numbers = {label: i for i, label in enumerate(self.labels)}
        found = example.answer if self.kind == "many" else [example.answer]
        for label in found:
            if label not in numbers:
                raise UserError(f"example {example.name} has the label {label!r}, which the others don't have{near(str(label), numbers)}")
        if self.kind == "one":
            return np.array([numbers[found[0]]])
        return np.isin(np.arange(len(numbers)), [numbers[label] for label in found]).astype(np.float32)[None]

    def losses(self, learner: Learner, states: Tensor, batch: Batch) -> dict[str, Tensor]:
        labels = batch.targets["classify.labels"]
        logits = learner.model.read("classify", states, batch.layout)[: len(labels)]  # what fills a batch up has none
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self.kind == "number":
            return {"classify": (logits.squeeze(-1) - labels.to(logits.dtype)).square().sum()}
        if self.kind == "many":
            right = ((logits.detach() > 0) == (labels > 0.5)).sum()
            return {"classify": F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="sum"), "classify.right": right}
        weights = torch.tensor(self.weighing, dtype=logits.dtype, device=logits.device) if self.weighing else None
        loss = F.cross_entropy(logits, labels, weights, reduction="sum", label_smoothing=self.smoothing)
        return {"classify": loss, "classify.right": (logits.detach().argmax(-1) == labels).sum()}
