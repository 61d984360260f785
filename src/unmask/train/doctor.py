"""What goes wrong while a run learns, named while it can still be stopped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

WINDOW = 200  # steps that are looked at together
PLATEAU = 0.8  # of the entropy of single pieces: who is above it has learned little but how frequent each is


class Doctor:
    """Says each thing once."""

    def __init__(self, entropy: float = math.inf) -> None:
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
        if self._stuck():
            loss = _mean(last, "words.loss")
            yield (
                "plateau",
                f"the loss of masked words stays at {loss:.2f}, and who knows only how frequent each piece is has {self.entropy:.2f}: the rate is too bold; "
                "lower optimizer.lr, warm up longer, or take a pre-norm model",
            )
        if "next.right" in last[-1] and _mean(last, "next.right") > 0.985:
            yield (
                "next",
                f"next sentence is answered right {_mean(last, 'next.right'):.1%} of the time: too easy, so it teaches nothing; "
                "are documents of one kind next to documents of another? try nsp.kind order",
            )
        if self.fastest and speed and speed < 0.6 * self.fastest:
            yield "slow", f"it makes {speed:,.0f} tokens/s and has made {self.fastest:,.0f}: something else uses the machine, or the disk of the shards is slow"

    def _stuck(self) -> bool:
        """Whether the loss has not moved over four windows, at the height where only frequencies are known."""
        if len(self.rows) < 4 * WINDOW or "words.loss" not in self.rows[-1]:
            return False
        first, last = _mean(self.rows[:WINDOW], "words.loss"), _mean(self.rows[-WINDOW:], "words.loss")
        return last > PLATEAU * self.entropy and first - last < 0.02 * first and self.rows[-1]["share"] < 0.9


def _mean(rows: Sequence[Mapping[str, float]], name: str) -> float:
    found = [row[name] for row in rows if name in row and math.isfinite(row[name])]
    return sum(found) / max(len(found), 1)
