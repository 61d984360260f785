"""How the rate of learning rises and falls with the progress of a run, and what else changes on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from unmask.config import Clock, Duration
from unmask.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Schedule:
    """Warm up, then fall: at once (linear, cosine) or at the end only (`wsd`: warm up, stay, decay; `sqrt` decays as 1 - sqrt)."""

    shape: Literal["linear", "cosine", "wsd", "sqrt", "constant"] = "linear"
    warmup: str = "1%"
    decay: str = "20%"  # of wsd and sqrt: how long the fall at the end is, a share of the run
    floor: float = 0.0  # what it falls to, a share of the highest

    def __post_init__(self) -> None:
        Duration.of(self.warmup)
        decay = Duration.of(self.decay)
        if decay.unit != "share" or decay.amount > 1:
            raise UserError(f"a decay of {self.decay} is no share of the run; write it as 20%")
        if not 0 <= self.floor <= 1:
            raise UserError(f"a floor of {self.floor} is no share of the highest rate; give 0 to 1")

    def factor(self, clock: Clock) -> float:
        """The rate's share of its highest, while that step is made; never 0, as the first step counts too."""
        warm, ahead = Duration.of(self.warmup), Clock(clock.steps + 1, clock.tokens, clock.epochs, clock.seconds, clock.share)
        risen = warm.passed(ahead if warm.unit == "steps" else clock) if warm.amount else 1.0
        if risen < 1:
            return max(risen, 1e-3)
        begin = 0.0 if self.shape in ("linear", "cosine") else 1 - Duration.of(self.decay).amount
        fallen = min(max((clock.share - begin) / (1 - begin), 0.0), 1.0) if begin < 1 else 0.0
        kept = {"cosine": (1 + math.cos(math.pi * fallen)) / 2, "sqrt": 1 - math.sqrt(fallen), "constant": 1.0}.get(self.shape, 1 - fallen)
        return self.floor + (1 - self.floor) * kept


def between(ends: Sequence[float], share: float) -> float:
    """A value that goes from the first to the last of these as the run goes on."""
    first, last = ends[0], ends[-1]
    return first + (last - first) * min(max(share, 0.0), 1.0)


def staged(stages: Sequence[tuple[float, T]], share: float) -> T:
    """Of values each with the share of the run that it begins at, the one that counts now."""
    return [value for begin, value in stages if begin <= share][-1]
