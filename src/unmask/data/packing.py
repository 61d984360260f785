"""Sequences into batches of a fixed number of tokens, in their order as nearly as can be."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


def packed(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """The numbers of the sequences of each batch, none above the budget.

    A batch takes sequences in order until one does not fit; what room is left is filled by later ones, each the longest that fits.
    It is decided by the lengths alone, so that it is the same for every rank.
    """
    if lengths and max(lengths) > budget:
        raise ValueError(f"a sequence of {max(lengths)} tokens does not fit into a batch of {budget}")
    taken = bytearray(len(lengths))
    waiting = _by_length(lengths)
    values = sorted(waiting)
    batches: list[list[int]] = []
    next_ = 0
    while True:
        batch: list[int] = []
        room = budget
        while next_ < len(lengths) and (taken[next_] or lengths[next_] <= room):
            if not taken[next_]:
                taken[next_] = 1
                batch.append(next_)
                room -= lengths[next_]
            next_ += 1
        if not batch:
            return batches
        place = bisect_right(values, room) - 1
        while place >= 0:
            group = waiting[values[place]]
            while group and taken[group[-1]]:
                group.pop()
            if group:
                taken[group[-1]] = 1
                room -= lengths[group[-1]]
                batch.append(group.pop())
            else:
                del values[place]
            place = bisect_right(values, room) - 1
        batches.append(batch)


def _by_length(lengths: Sequence[int]) -> dict[int, list[int]]:
    """For each length its sequences, the first of them last, to be popped."""
    found: dict[int, list[int]] = {}
    for number in range(len(lengths) - 1, -1, -1):
        found.setdefault(lengths[number], []).append(number)
    return found
