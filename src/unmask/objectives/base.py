"""What an objective is: how documents are cut into sequences, what is asked of them, and the losses, summed.

An objective is settings and nothing else, so that a recipe holds it and a file says it; what it learns with (the model, a generator
beside it) is a `Learner`'s. It returns sums of losses and the batch says how many labels there are: who divides is the loop, by the count
of all ranks and all parts of a step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask import plugins
from unmask.data.batch import Batch
from unmask.data.shards import Documents
from unmask.data.stream import IGNORED, Rows, Sequences
from unmask.model.layout import Reach
from unmask.model.model import Model
from unmask.tokenizer import Tokenizer

Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Pieces:
    """What must be known of a vocabulary."""

    mask: int
    special: Numbers  # true for pieces that are never masked nor put in
    inner: Numbers  # true for pieces that continue a word
    cls: int = 0
    sep: int = 0

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Pieces:
        special, inner = np.zeros((2, tokenizer.size), bool)
        for number, token in tokenizer.rust.get_added_tokens_decoder().items():
            special[number] = token.special
        for piece, number in tokenizer.rust.get_vocab().items():
            inner[number] = tokenizer.spelled(piece)[1]
        return cls(tokenizer.special("mask"), special, inner & ~special, tokenizer.special("cls"), tokenizer.special("sep"))

    @cached_property
    def plain(self) -> Numbers:
        """The pieces that may stand where they don't belong."""
        return np.flatnonzero(~self.special)


class Cuts(Protocol):
    """Documents into sequences."""

    def cut(self, documents: Documents, epoch: int) -> Sequences: ...


class Asks(Protocol):
    """Rows of tokens into what the model is shown, and what it should answer; `share` is how much of the run has passed."""

    def ask(self, rows: Rows, epoch: int, share: float = 0.0) -> tuple[Numbers, Mapping[str, Numbers]]: ...


@dataclass(frozen=True)
class Reading:
    """What a stream reads by. `fixed`: the same pairs and masks in every epoch, as for evaluation."""

    pairs: Cuts
    masking: Asks
    fixed: bool = False

    def cut(self, documents: Documents, epoch: int) -> Sequences:
        return self.pairs.cut(documents, 0 if self.fixed else epoch)

    def ask(self, rows: Rows, sequences: Sequences, epoch: int, share: float = 0.0) -> tuple[Numbers, Mapping[str, Numbers]]:
        shown, targets = self.masking.ask(rows, 0 if self.fixed else epoch, share)
        return shown, {**targets, **{f"{name}.labels": labels for name, labels in sequences.labels.items()}}


@dataclass(frozen=True)
class Frame:
    """What a run tells its objectives about itself."""

    pieces: Pieces
    longest: int
    short: float
    seed: int
    fixed: bool = False  # for evaluation: as published, whatever a schedule says


class Objective(ABC):
    """One thing to learn. One file, one subclass, a frozen dataclass of settings."""

    terms: ClassVar[tuple[str, ...]]  # its losses, by name; the targets of each are named after it
    separable: ClassVar[bool] = True  # false where a sample's loss depends on the others of its group
    reach: ClassVar[Reach | None] = None  # how far the model may see while it learns so, where that is not its own to say
    pieces: ClassVar[tuple[str, ...]] = ()  # the terms that are answered by a piece of the vocabulary

    def heads(self, vocabulary: int) -> dict[str, int]:
        """The heads it needs, with their numbers of labels."""
        return {}

    def weights(self) -> dict[str, float]:
        return dict.fromkeys(self.terms, 1.0)

    def judges(self) -> tuple[str, ...]:
        """The terms by which one evaluation is better than another: the model's own, as it is the model that is kept."""
        return self.terms

    def called(self) -> dict[str, str]:
        """What each term asks for, as people say it."""
        return {term: term for term in self.terms}

    def cuts(self, frame: Frame) -> Cuts | None:
        """How it would have documents cut; None where it takes them as they come."""
        return None

    def asks(self, frame: Frame) -> Asks | None:
        """What it asks of tokens; None where the cutting already said."""
        return None

    def beside(self, model: Model, seed: int) -> nn.Module | None:
        """What is learned together with the model and left behind in the end."""
        return None

    def before(self, learner: Learner, batch: Batch) -> tuple[Batch, dict[str, Tensor]]:
        """What comes before the model reads: another batch, and losses of what made it."""
        return batch, {}

    def answering(self, learner: Learner) -> dict[str, nn.Module]:
        """What answers each term; it reads a row for each of the term's labels."""
        return {term: learner.model.heads[term] for term in self.terms}

    @abstractmethod
    def losses(self, learner: Learner, states: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Each term's loss, summed; under `term.right` how many answers were right, for people."""


class Learner(nn.Module):
    """A model and what it learns by. `learner(batch)` gives every term's summed loss, over one forward of the encoder."""

    def __init__(self, model: Model, objectives: Sequence[Objective], seed: int = 0) -> None:
        super().__init__()
        self.model = model
        self.objectives = tuple(objectives)
        self.beside = nn.ModuleDict({name_of(one): module for one in objectives if (module := one.beside(model, seed)) is not None})
        self.words = word_loss

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for objective in self.objectives:
            batch, losses = objective.before(self, batch)
            found |= losses
        states = self.model(batch.inputs, batch.layout)
        for objective in self.objectives:
            found |= objective.losses(self, states, batch)
        return found

    @property
    def weights(self) -> dict[str, float]:
        return {term: weight for one in self.objectives for term, weight in one.weights().items()}


def name_of(objective: Objective) -> str:
    """Its name in a recipe, which is its file's."""
    return type(objective).__module__.rpartition(".")[2]


def names() -> tuple[str, ...]:
    return plugins.names("unmask.objectives")


def find(name: str) -> type[Objective]:
    return plugins.find("unmask.objectives", name, Objective)  # type: ignore[type-abstract]


def counts(batch: Batch) -> dict[str, int]:
    """How many labels each term has in this batch; known before anything is computed."""
    found = {name.removesuffix(".labels"): labels for name, labels in batch.targets.items() if name.endswith(".labels")}
    return {term: int((labels != IGNORED).sum()) for term, labels in found.items()}


def reading(objectives: Sequence[Objective], frame: Frame) -> Reading:
    """How all of them read: cut by the one that pairs, asked by the one that asks."""
    from unmask.objectives.nsp import Pairs

    plain = Pairs("none", frame.pieces.cls, frame.pieces.sep, frame.longest, frame.short, frame.seed)
    cuts = [cut for one in objectives if (cut := one.cuts(frame)) is not None]
    asks = [ask for one in objectives if (ask := one.asks(frame)) is not None]
    return Reading(cuts[0] if cuts else plain, asks[0] if asks else AsTheyAre(), frame.fixed)


@dataclass(frozen=True)
class AsTheyAre:
    """Nothing is asked of single tokens."""

    def ask(self, rows: Rows, epoch: int, share: float = 0.0) -> tuple[Numbers, Mapping[str, Numbers]]:
        return rows.tokens, {}


def filled(term: str, places: Numbers, labels: Numbers, size: int) -> dict[str, Numbers]:
    """A term's rows and their labels, filled up to a size that depends on the number of tokens alone, so that shapes stay what they are."""
    rows, answers = np.zeros(size, np.int64), np.full(size, IGNORED)
    rows[: len(places)], answers[: len(places)] = places, labels
    return {f"{term}.rows": rows, f"{term}.labels": answers}


def word_loss(head: nn.Module, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy of the word head on these rows, and how many it got right. In float32, whatever the rows are in."""
    logits = head(rows, None)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return loss, (logits.detach().argmax(-1) == labels).sum()
