"""Random numbers that are not drawn but computed: each a hash of who asks for what (Salmon et al. 2011, counter-based generators).

A stream of random numbers has a state that must be saved, and moves when somebody draws once more. Here a mask is a function of
(seed, epoch, sample, position): whole arrays at once, in any order, by any number of workers, again at any time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Numbers = np.ndarray[Any, np.dtype[Any]]
GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
ROUNDS = 6


def mix(x: Numbers) -> Numbers:
    """A bijection of 64 bits that leaves no trace of order (splitmix64's, Steele et al. 2014)."""
    x = x ^ (x >> np.uint64(30))
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def key(*parts: int | str) -> int:
    """One number for a purpose: key(seed, "mask", epoch)."""
    found = 0
    for part in parts:
        number = int.from_bytes(part.encode()[:8].ljust(8, b"\0"), "little") ^ len(part) << 56 if isinstance(part, str) else part
        found = int(mix(np.array([(found + GOLDEN + (number & MASK) * 0xD1342543DE82EF95) & MASK], np.uint64))[0])
    return found


def hashed(purpose: int | Numbers, *counters: Numbers | np.uint64) -> Numbers:
    """64 bits for each place of the counters, which are broadcast together."""
    found = np.atleast_1d(np.asarray(purpose, np.uint64))
    for counter in counters:
        found = mix(found + np.uint64(GOLDEN) * (np.atleast_1d(counter).astype(np.uint64) + np.uint64(1)))
    return found


def uniform(bits: Numbers) -> Numbers:
    """Numbers in [0, 1), float64."""
    return (bits >> np.uint64(11)) * 2.0**-53


def below(bits: Numbers, limit: Numbers | int) -> Numbers:
    """Whole numbers from 0 to below the limit, int64; of limits under 2^32 all are as likely to one part in 2^21."""
    return np.floor(uniform(bits) * limit).astype(np.int64)


def permuted(places: Numbers, size: int, purpose: int) -> Numbers:
    """Where these places of range(size) go in a shuffled order: a bijection without a table (Luby and Rackoff 1988).

    A Feistel network permutes a power of four that holds the range; what falls outside it goes round again until it is inside.
    """
    half = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    found = np.asarray(places).astype(np.uint64)
    todo = np.ones(found.shape, bool)
    while todo.any():
        left, right = found[todo] >> np.uint64(half), found[todo] & mask
        for round_ in range(ROUNDS):
            left, right = right, left ^ (mix(right + np.uint64(key(purpose, round_))) & mask)
        found[todo] = left << np.uint64(half) | right
        todo &= found >= np.uint64(size)
    return found.astype(np.int64)
