"""What a task learns by: examples made into samples with their labels, the loss, and the card that says what the model then answers.

A task is an objective like any other, so that the one loop learns it. It stands in the task's own file, beside what asks and answers.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from unmask import plugins
from unmask.data.examples import Example, Examples
from unmask.data.samples import Sample
from unmask.model.card import Card
from unmask.objectives.base import Objective
from unmask.tasks.base import Task
from unmask.tasks.metrics.kinds import named
from unmask.tasks.metrics.tally import Tally
from unmask.tokenizer import Encoding

PACKAGE = "unmask.tasks"


@dataclass(frozen=True)
class Tuning(Objective):
    """`metric` chooses the best checkpoint; none: the first of the kind's."""

    metric: str = ""

    @abstractmethod
    def fitted(self, examples: Examples) -> Self:
        """The same with what only the data knows: labels, and how many hold at once."""

    @abstractmethod
    def card(self, card: Card) -> Card:
        """What the folder of the model will say."""

    @abstractmethod
    def carded(self, card: Card) -> Self:
        """The other way: as it must have been, by what the folder says."""

    @abstractmethod
    def samples(self, asked: Task, examples: Iterable[Example]) -> Iterable[Sample]:
        """What is learned from each, one sample a window."""

    @abstractmethod
    def tally(self) -> Tally:
        """What outcomes are collected in, none yet."""

    @abstractmethod
    def outcome(self, example: Example, answer: Any) -> Outcome: ...

    def given(self, example: Example) -> Any:
        """What the model is asked."""
        return example.given

    @property
    def primary(self) -> str:
        tally = self.tally()
        return named(tally.kind, self.metric, len(tally.labels))


class Outcome(NamedTuple):
    """What is true and what was said, as `Tally.add` takes it."""

    gold: Any
    said: Any
    chance: float = math.nan  # that the model gave its answer
    loss: float = math.nan


def names() -> tuple[str, ...]:
    """The tasks that can be learned."""
    return tuple(name for name in plugins.names(PACKAGE) if plugins.has(PACKAGE, name, Tuning))


def find(name: str) -> type[Tuning]:
    return plugins.find(PACKAGE, name, Tuning)  # type: ignore[type-abstract]


def sample(encodings: Sequence[Encoding], labels: dict[str, Any], rows: dict[str, Any] | None = None) -> Sample:
    ids, segments = ([np.asarray(getattr(one, name), np.int32) for one in encodings] for name in ("ids", "type_ids"))
    return Sample(tuple(ids), tuple(segments), {name: np.asarray(value) for name, value in labels.items()}, {k: np.asarray(v) for k, v in (rows or {}).items()})


def among(logits: Tensor, counts: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of (rows, C), so many to a group: for each column a softmax over each group, of which the row in `labels` (groups, C) is right.

    The summed loss, and how many were right. Rows and groups beyond the labels fill a batch up.
    """
    counts = counts[: len(labels)]
    logits = logits[: int(counts.sum())]
    owner = torch.repeat_interleave(torch.arange(len(counts), device=logits.device), counts, output_size=len(logits))
    top = torch.segment_reduce(logits.detach(), "max", lengths=counts)
    total = torch.zeros_like(top).index_add(0, owner, (logits - top[owner]).exp()).log() + top
    found = logits.gather(0, (counts.cumsum(0) - counts)[:, None] + labels)
    return (total - found).sum(), (found == top).sum()
