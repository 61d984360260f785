"""Both ways, each for itself (Peters et al. 2018, section 3.1): one side foretells the next piece, the other the one before, and one softmax serves both.

It learns only where no side sees what the other has read, which is so in the family `bilm`: a BERT would look its answers up. The softmax is
the matrix that embeds, turned round (Press and Wolf 2017), and a bias, which stays behind as ELMo's did: what is kept are the states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.data.batch import Batch
from unmask.data.stream import Rows
from unmask.errors import UserError
from unmask.model.model import Model
from unmask.objectives.base import Frame, Learner, Objective, filled, name_of
from unmask.objectives.causal import followed

Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class BiLM(Objective):
    """It has no settings: all that can be asked is asked."""

    terms: ClassVar[tuple[str, ...]] = ("ahead", "back")
    pieces: ClassVar[tuple[str, ...]] = ("ahead", "back")

    def called(self) -> dict[str, str]:
        return {"ahead": "words that follow", "back": "words that come before"}

    def asks(self, frame: Frame) -> Neighbours:
        return Neighbours()

    def beside(self, model: Model, seed: int) -> nn.Module:
        if model.config.family != "bilm":
            raise UserError(f"bilm asks what a {model.config.family} can see, and it would learn to look it up; choose a shape of the family bilm")
        return Softmax(model.embed.words)

    def answering(self, learner: Learner) -> dict[str, nn.Module]:
        return dict.fromkeys(self.terms, learner.beside[name_of(self)])

    def losses(self, learner: Learner, states: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Each side of the states is asked for its own neighbour."""
        found: dict[str, Tensor] = {}
        sides = batch.layout.tokens(states).chunk(2, -1)
        for (term, softmax), side in zip(self.answering(learner).items(), sides, strict=True):
            rows, labels = side[batch.targets[f"{term}.rows"]], batch.targets[f"{term}.labels"]
            found[term], found[f"{term}.right"] = learner.words(softmax, rows, labels)
        return found


class Softmax(nn.Module):
    """Which piece a state foretells."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table = table
        self.bias = nn.Parameter(torch.zeros(table.num_embeddings))

    def forward(self, rows: Tensor, layout: None) -> Tensor:
        return F.linear(rows, self.table.weight, self.bias)


@dataclass(frozen=True)
class Neighbours:
    """Nothing is hidden; of every two neighbours each is asked for the other."""

    def ask(self, rows: Rows, epoch: int, share: float = 0.0) -> tuple[Numbers, Mapping[str, Numbers]]:
        places, size = followed(rows), len(rows.tokens)
        ahead, back = filled("ahead", places, rows.tokens[places + 1], size), filled("back", places + 1, rows.tokens[places], size)
        return rows.tokens, {**ahead, **back}
