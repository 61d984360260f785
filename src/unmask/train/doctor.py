"""What goes wrong while a run learns, named while it can still be stopped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from unmask.objectives.base import Objective

WINDOW = 200  # steps that are looked at together
PLATEAU = 0.97  # of the entropy of single pieces: who stays above it has learned how frequent each is, and no more
BLOCKED = 0.1  # the first layer's gradient by the last one's, which are about alike in a model that learns


class Doctor:
    """Says each thing once."""

    def __init__(self, objectives: Sequence[Objective] = (), entropy: float = math.inf) -> None:
        self.called = {term: called for one in objectives for term, called in one.called().items()}
        self.pieces = [term for one in objectives for term in one.pieces]
        self.entropy = entropy  # of single pieces, in nats
        self.rows: list[Mapping[str, float]] = []
        self.said: set[str] = set()
        self.fastest = 0.0

    def look(self, rows: Sequence[Mapping[str, float]], speed: float) -> Iterator[str]:
        self.rows = [*self.rows, *rows][-4 * WINDOW :]
        self.fastest = max(self.fastest, speed)
        for name, warning in self._found(speed):
            if name not in self.said:
                self.said.add(name)
                yield warning

    def _found(self, speed: float) -> Iterator[tuple[str, str]]:
        last = self.rows[-WINDOW:]
        if len(last) < WINDOW or self.rows[-1]["step"] < 2 * WINDOW:
            return
        clip = last[-1].get("clip", 0.0)
        if clip and all(row["norm"] > clip for row in last):
            middle = sorted(row["norm"] for row in last)[len(last) // 2]
            said = f"every one of the last {WINDOW} gradients was clipped (their norm is {middle:.1f}, the limit {clip:g})"
            yield "clip", f"{said}: lower optimizer.lr, or raise optimizer.clip"
        for term in filter(self._stuck, self.pieces):
            loss, why = _mean(last, f"{term}.loss"), _why(_mean(last, "through"))
            said = f"the loss of {self.called[term]} stays at {loss:.2f}, and who knows only how frequent each piece is has {self.entropy:.2f}"
            yield f"plateau of {term}", f"{said}: {why}"
        if "next.right" in last[-1] and _mean(last, "next.right") > 0.985:
            said = f"{self.called['next']} is answered right {_mean(last, 'next.right'):.1%} of the time: too easy, so it teaches nothing"
            remedy = "are documents of one kind next to documents of another? try nsp.kind order"
            yield "next", f"{said}; {remedy if self.called['next'] == 'next sentence' else 'leave it out with --objective mlm'}"
        if self.fastest and speed and speed < 0.6 * self.fastest:
            yield "slow", f"it makes {speed:,.0f} tokens/s and has made {self.fastest:,.0f}: something else uses the machine, or the disk of the shards is slow"

    def _stuck(self, term: str) -> bool:
        """Whether its loss has not moved over four windows, at the height where only frequencies are known, though the rate no longer rises."""
        if len(self.rows) < 4 * WINDOW or f"{term}.loss" not in self.rows[-1]:
            return False
        first, last = (_mean(rows, f"{term}.loss") for rows in (self.rows[:WINDOW], self.rows[-WINDOW:]))
        risen = self.rows[0].get("lr", 0.0) >= self.rows[-1].get("lr", 0.0)
        return risen and last > PLATEAU * self.entropy and first - last < 0.01 * first and self.rows[-1]["share"] < 0.9


def _why(through: float) -> str:
    if through < BLOCKED:
        return (
            f"the first layer's gradient is {through:.1%} of the last one's, so the rate was too bold; "
            "begin again with a lower optimizer.lr, a longer warm-up, or a pre-norm model"
        )
    return "the gradient reaches the first layer, so it may only need longer; a higher optimizer.lr or Muon gets there sooner"


def _mean(rows: Sequence[Mapping[str, float]], name: str) -> float:
    found = [row[name] for row in rows if name in row and math.isfinite(row[name])]
    return sum(found) / max(len(found), 1)
