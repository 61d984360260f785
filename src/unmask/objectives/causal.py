"""Left to right (Radford et al. 2018, section 3.1): every token but a sequence's last is asked for the one that follows, and sees none of what follows.

The model is the same; only how far it sees is another, and its folder says so (`is_decoder`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from unmask.data.batch import Batch
from unmask.data.stream import Rows
from unmask.model.layout import CAUSAL, Reach
from unmask.objectives.base import Frame, Learner, Objective, filled

Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Causal(Objective):
    """It has no settings: all that can be asked is asked."""

    terms: ClassVar[tuple[str, ...]] = ("words",)
    pieces: ClassVar[tuple[str, ...]] = ("words",)
    reach: ClassVar[Reach | None] = CAUSAL

    def heads(self, vocabulary: int) -> dict[str, int]:
        return {"words": vocabulary}

    def called(self) -> dict[str, str]:
        return {"words": "words that follow"}

    def asks(self, frame: Frame) -> Next:
        return Next()

    def losses(self, learner: Learner, states: Tensor, batch: Batch) -> dict[str, Tensor]:
        rows = batch.layout.tokens(states)[batch.targets["words.rows"]]
        loss, right = learner.words(learner.model.heads["words"], rows, batch.targets["words.labels"])
        return {"words": loss, "words.right": right}


@dataclass(frozen=True)
class Next:
    """Nothing is hidden; what is asked of a token is the next one."""

    def ask(self, rows: Rows, epoch: int, share: float = 0.0) -> tuple[Numbers, Mapping[str, Numbers]]:
        places = followed(rows)
        return rows.tokens, filled("words", places, rows.tokens[places + 1], len(rows.tokens))


def followed(rows: Rows) -> Numbers:
    """The tokens after which another one of their sequence comes."""
    ends = np.cumsum(rows.lengths)
    return np.delete(np.arange(ends[-1]), ends - 1)
