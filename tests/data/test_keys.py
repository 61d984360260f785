"""Numbers computed, not drawn: the same for ever, without a trace of order, and a shuffle without a table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.data.keys import below, hashed, key, mix, permuted, uniform


def test_they_are_what_they_were() -> None:
    """A run that is resumed by a later version must see the same masks."""
    assert key(0, "mask", 3) == 13934479433327964408
    assert hashed(7, np.arange(3), np.array([5, 5, 6])).tolist() == [3362569151192863174, 9151324248482319486, 6221948582213815476]
    assert permuted(np.arange(10), 10, key(1)).tolist() == [3, 5, 0, 6, 2, 9, 1, 7, 8, 4]


def test_mixing_is_splitmix64() -> None:
    def plainly(x: int) -> int:
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    numbers = [0, 1, 2, 2**32, 2**63, 2**64 - 1]
    assert mix(np.array(numbers, np.uint64)).tolist() == [plainly(x) for x in numbers]


def test_a_purpose_is_its_own() -> None:
    keys = [key(), key(0), key(1), key(0, 0), key("a"), key("a", 0), key("b"), key("ab"), key(-1), key("mask", 0), key("masks", 0), key(2**64 - 2)]
    assert len(set(keys)) == len(keys)


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 3000), purpose=st.integers(0, 2**64 - 1))
def test_a_shuffle_meets_every_place_once(size: int, purpose: int) -> None:
    assert sorted(permuted(np.arange(size), size, purpose).tolist()) == list(range(size))


def test_a_part_of_a_shuffle_is_that_part() -> None:
    whole = permuted(np.arange(5000), 5000, 9)
    assert np.array_equal(permuted(np.array([4999, 17, 0]), 5000, 9), whole[[4999, 17, 0]])


def test_a_shuffle_leaves_no_order() -> None:
    """Neighbours lie a third of the range apart on average, as in any shuffle; and two epochs have nothing to do with one another."""
    size = 100_000
    one, two = (permuted(np.arange(size), size, key(1, epoch)) for epoch in (0, 1))
    for found in (one, two):
        assert abs(np.abs(np.diff(found)).mean() / size - 1 / 3) < 0.005
        assert abs(np.corrcoef(found, np.arange(size))[0, 1]) < 0.02
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.02
    assert (one == two).sum() < 10


def test_bits_are_even_and_apart() -> None:
    bits = hashed(3, np.repeat(np.arange(1000), 1000), np.tile(np.arange(1000), 1000))
    assert len(np.unique(bits)) == 1_000_000
    for bit in range(64):
        share = (bits >> np.uint64(bit) & np.uint64(1)).mean()
        assert abs(share - 0.5) < 5 * 0.5 / 1000, bit
    chances = uniform(bits)
    assert 0 <= chances.min() < chances.max() < 1
    counts = np.bincount(below(bits, 10), minlength=10)
    assert len(counts) == 10
    assert np.abs(counts - 100_000).max() < 5 * (100_000 * 0.9) ** 0.5
    square = chances.reshape(1000, 1000)
    assert abs(np.corrcoef(square[:, 0], square[:, 1])[0, 1]) < 5 / 1000**0.5
    assert abs(np.corrcoef(square[0], square[1])[0, 1]) < 5 / 1000**0.5


@pytest.mark.parametrize("limit", [1, 2, 7, 2**31])
def test_below_stays_below(limit: int) -> None:
    found = below(np.array([0, 2**64 - 1], np.uint64), limit)
    assert found.tolist() == [0, limit - 1]
