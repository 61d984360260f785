"""Every sequence once, no batch too full, hardly any room left, and their order nearly kept."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.data.packing import packed


@settings(max_examples=200, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), max_size=120), budget=st.integers(40, 200))
def test_every_sequence_is_in_one_batch(lengths: list[int], budget: int) -> None:
    batches = packed(lengths, budget)
    assert sorted(number for batch in batches for number in batch) == list(range(len(lengths)))
    assert all(0 < sum(lengths[i] for i in batch) <= budget for batch in batches)
    for batch, later in itertools.pairwise(batches):
        room = budget - sum(lengths[i] for i in batch)
        assert min(lengths[i] for i in later) > room, "a batch was closed though a later sequence fitted"


@pytest.mark.parametrize("budget", [4096, 16_384, 65_536])
def test_mixed_lengths_fill_it(budget: int) -> None:
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(5, 1, 20_000), 4, 512).astype(int).tolist()
    batches = packed(lengths, budget)
    assert sum(lengths) / (budget * len(batches)) >= 0.98
    assert min(sum(lengths[i] for i in batch) for batch in batches[:-1]) >= 0.98 * budget


def test_order_is_kept_where_it_can_be() -> None:
    assert packed([5, 5, 5, 5, 5], 10) == [[0, 1], [2, 3], [4]]
    assert packed([6, 6, 4, 2, 2], 10) == [[0, 2], [1, 3, 4]]
    assert packed([], 10) == []


def test_what_cannot_fit_is_told() -> None:
    with pytest.raises(ValueError, match="a sequence of 11 tokens does not fit into a batch of 10"):
        packed([3, 11], 10)
