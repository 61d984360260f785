"""What stands twice: exact copies by hash, near copies by MinHash, and word runs that two data sets share.

Everything is computed on hashes of words, a whole text at once. What is kept is bounded: when there is too much of it, only
those stay whose hash is below a bound, so that copies of one another stay or go together and shares remain true.

MinHash with one hash and many bins: Li, Owen and Zhang, "One permutation hashing" (2012); each empty bin borrows from a
filled one drawn for it: Shrivastava, "Optimal densification for fast and accurate minwise hashing" (2017). The next one that is filled
would not do: of few shingles, one may then fill most bins.
"""

from __future__ import annotations

import hashlib
from array import array
from functools import cache
from unicodedata import category

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
BINS = 64
ROWS = 4  # bins a band: with 16 bands, pairs that share 0.8 of their shingles are found 999 times in 1,000
SHINGLE = 3  # words
RUN = 13  # words in a row that two texts do not share by chance
ALIKE = 0.8  # of the shingles, from where on two texts are near copies
BLOCK = 1 << 18  # letters that are hashed at a time
EMPTY = np.uint32(0xFFFFFFFF)
BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64


@cache
def _letters() -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Of every character of the first plane: 0 between words, 1 in a word, 2 a word by itself; and its small form."""
    kinds, small = np.zeros(0x10000, np.uint8), np.arange(0x10000, dtype=np.uint32)
    for code in range(0x10000):
        letter = chr(code)
        if letter.isalnum() or category(letter) == "Mn":  # a mark upon a letter does not end its word
            kinds[code] = 2 if 0x3040 <= code <= 0x30FF or 0x3400 <= code <= 0x9FFF or 0xF900 <= code <= 0xFAFF or 0x0E00 <= code <= 0x0EFF else 1
            lower = letter.lower()
            small[code] = ord(lower) if len(lower) == 1 else code
    return kinds, small


@cache
def _powers() -> tuple[Hashes, Hashes]:
    """BASE to the power of each place, and its inverse."""
    inverse = pow(BASE, -1, 1 << 64)
    up, down = np.full(BLOCK + 1, BASE, np.uint64), np.full(BLOCK + 1, inverse, np.uint64)
    up[0] = down[0] = 1
    return np.multiply.accumulate(up), np.multiply.accumulate(down)


def codes(text: str) -> NDArray[np.uint32]:
    """The characters' numbers, halves of surrogate pairs too."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def words(points: NDArray[np.uint32]) -> Hashes:
    """A hash of each word, in order, case aside; ideographs, kana and Thai letters count as a word each."""
    pieces, start = [np.zeros(0, np.uint64)], 0
    while start < len(points):
        end = _end(points, start)
        pieces.append(_words(points[start:end]))
        start = end
    return pieces[-1] if len(pieces) <= 2 else np.concatenate(pieces)


def _end(points: NDArray[np.uint32], start: int) -> int:
    """Where the block that starts here ends: between words, unless one is as long as a block."""
    end = start + BLOCK
    if end >= len(points):
        return len(points)
    apart = np.flatnonzero(_letters()[0][np.minimum(points[start + 1 : end + 1], np.uint32(0xFFFF))] != 1)
    return start + 1 + int(apart[-1]) if len(apart) else end


def _words(points: NDArray[np.uint32]) -> Hashes:
    kinds, small = _letters()
    near = np.minimum(points, np.uint32(0xFFFF))
    kind = kinds[near]
    kind[points > 0xFFFF] = 2
    inside = kind > 0
    first = inside.copy()
    first[1:] &= (kind[:-1] != 1) | (kind[1:] == 2)
    starts = np.flatnonzero(first)
    if not len(starts):
        return np.zeros(0, np.uint64)
    up, down = _powers()
    values = np.where(points > 0xFFFF, points, small[near]).astype(np.uint64)
    values += np.uint64(1)
    values *= up[: len(values)]
    values *= inside
    return _mixed(np.add.reduceat(values, starts) * down[starts])


def _mixed(hashes: Hashes) -> Hashes:
    """Every bit of the outcome hangs on every bit that goes in (the finisher of SplitMix64)."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


def runs(hashes: Hashes, length: int) -> Hashes:
    """A hash of each run of so many words; of all of them, where there are fewer."""
    length = min(length, len(hashes))
    if not length:
        return hashes
    total = np.zeros(len(hashes) - length + 1, np.uint64)
    for place in range(length):
        total *= np.uint64(BASE)
        total += hashes[place : len(hashes) - length + 1 + place]
    return _mixed(total)


def exact(text: str) -> int:
    """A text's own hash, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def signature(hashes: Hashes) -> NDArray[np.uint32]:
    """The smallest shingle of each bin."""
    found = np.full(BINS, EMPTY, np.uint32)
    shingles = runs(hashes, SHINGLE)
    np.minimum.at(found, (shingles >> np.uint64(58)).astype(np.intp), shingles.astype(np.uint32))
    if not len(shingles) or (found != EMPTY).all():
        return found
    orders = _orders()
    first = (found != EMPTY)[orders].argmax(axis=1)
    return found[orders[np.arange(BINS), first]]


@cache
def _orders() -> NDArray[np.intp]:
    """For each bin the others in the order in which it asks them, itself first."""
    drawn = _mixed(np.arange(1, BINS * BINS + 1, dtype=np.uint64)).reshape(BINS, BINS)
    np.fill_diagonal(drawn, 0)
    return np.argsort(drawn, axis=1)


class Copies:
    """Hashes of texts, and which share of them stood there before."""

    def __init__(self, limit: int = 8_000_000) -> None:
        self.limit, self.bound, self.total = limit, 1 << 64, 0
        self.kept = array("Q")

    def add(self, key: int) -> None:
        self.total += 1
        if key < self.bound:
            self.kept.append(key)
            if len(self.kept) > self.limit:
                self.bound //= 2
                keys = np.frombuffer(self.kept, np.uint64)
                self.kept = array("Q", keys[keys < np.uint64(self.bound)].tobytes())

    def share(self) -> float:
        return _share(len(self.keys()), len(self.kept), self.total, (1 << 64) / self.bound)

    def keys(self) -> Hashes:
        """Sorted, each once."""
        return np.unique(np.frombuffer(self.kept, np.uint64))


def _share(different: int, kept: int, total: int, weight: float) -> float:
    """Which share could go. Of a sample (whose texts stand for `weight` each) its own, unless a text that stands there very often is in it, or is not, by
    chance: then how many are different says more."""
    if not total:
        return 0.0
    whole = 1 - different * weight / total
    if weight == 1:
        return whole
    error = 3 * (1 - whole) / max(1, different) ** 0.5
    own = 1 - different / kept if kept else whole
    return min(max(own, whole - error, 0.0), whole + error)


class Likeness:
    """Signatures of texts, and which share of them is a near copy of another."""

    def __init__(self, limit: int = 200_000) -> None:
        self.limit, self.bound, self.total = limit, 1 << 64, 0
        self.kept: list[NDArray[np.uint32]] = []
        self.keys = array("Q")

    def add(self, hashes: Hashes) -> None:
        self.total += 1
        found = signature(hashes)
        key = int(_mixed(found[:1].astype(np.uint64))[0])  # near copies mostly have the same first bin, and so stay or go together; long texts have small ones
        if key < self.bound:
            self.kept.append(found)
            self.keys.append(key)
            if len(self.kept) > self.limit:
                self.bound //= 2
                self.kept = [one for one, key in zip(self.kept, self.keys, strict=True) if key < self.bound]
                self.keys = array("Q", [key for key in self.keys if key < self.bound])

    @property
    def sampled(self) -> bool:
        return self.bound < 1 << 64

    def share(self) -> float:
        """How many could go and leave none without its like."""
        different = len(np.unique(groups(np.stack(self.kept)))) if self.kept else 0
        return _share(different, len(self.kept), self.total, (1 << 64) / self.bound)


def groups(table: NDArray[np.uint32]) -> NDArray[np.intp]:
    """For each signature the first of its group: two are in one group where ALIKE of their bins agree, or through others."""
    home = np.arange(len(table))
    for start in range(0, BINS, ROWS):
        band = runs_of_rows(table[:, start : start + ROWS])
        order = np.argsort(band, kind="stable")
        same = np.flatnonzero(band[order[1:]] == band[order[:-1]])
        one, other = order[same], order[same + 1]
        alike = np.concatenate([np.zeros(0, bool), *(_alike(table, one[i : i + 65536], other[i : i + 65536]) for i in range(0, len(one), 65536))])
        home = _joined(home, one[alike], other[alike])
    return home


def runs_of_rows(rows: NDArray[np.uint32]) -> Hashes:
    total = np.zeros(len(rows), np.uint64)
    for column in rows.T:
        total = total * np.uint64(BASE) + column
    return _mixed(total)


def _alike(table: NDArray[np.uint32], one: NDArray[np.intp], other: NDArray[np.intp]) -> NDArray[np.bool_]:
    return (table[one] == table[other]).mean(axis=1) >= ALIKE


def _joined(home: NDArray[np.intp], one: NDArray[np.intp], other: NDArray[np.intp]) -> NDArray[np.intp]:
    """The groups after these pairs are put together."""
    while True:
        least = np.minimum(home[one], home[other])
        after = home.copy()
        np.minimum.at(after, home[one], least)
        np.minimum.at(after, home[other], least)
        after = after[after]
        if (after == home).all():
            return home
        home = after


class Overlap:
    """Which texts of one data set (added first) stand in another (looked up after): whole, or by runs of 13 words."""

    def __init__(self, limit: int = 16_000_000) -> None:
        self.limit, self.bound = limit, 1 << 64
        self.pieces: list[tuple[int, Hashes]] = []  # the runs of each text that is kept, whole, so that short texts weigh as much as long ones
        self.held = self.texts = self.kept = 0
        self.sorted: tuple[Hashes, NDArray[np.uint32]] | None = None
        self.found: NDArray[np.bool_] = np.zeros(0, bool)
        self.may = np.zeros(1 << 24, bool)  # by the first 24 bits: most look-ups end here, without a search

    def add(self, hashes: Hashes) -> None:
        """A text of the first. One of fewer than 13 words counts as a whole."""
        self.texts += 1
        key = exact(str(self.texts))
        if key >= self.bound:
            return
        self.pieces.append((key, runs(hashes, RUN)))
        self.held += len(self.pieces[-1][1])
        if self.held > self.limit:
            self.bound //= 2
            self.pieces = [(key, grams) for key, grams in self.pieces if key < self.bound] or self.pieces[:1]
            self.held = sum(len(grams) for _, grams in self.pieces)

    def look_up(self, hashes: Hashes) -> None:
        """A text of the second."""
        if self.sorted is None:
            keys = np.concatenate([np.zeros(0, np.uint64), *(grams for _, grams in self.pieces)])
            self.kept = len(self.pieces)
            owners = np.repeat(np.arange(self.kept, dtype=np.uint32), [len(grams) for _, grams in self.pieces])
            order = np.argsort(keys, kind="stable")
            self.sorted, self.pieces = (keys[order], owners[order]), []
            self.found = np.zeros(len(keys), bool)
            self.may[keys >> np.uint64(40)] = True
        keys = self.sorted[0]
        grams = runs(hashes, RUN)
        grams = grams[self.may[grams >> np.uint64(40)]]
        if not len(keys) or not len(grams):
            return
        places = np.minimum(np.searchsorted(keys, grams), len(keys) - 1)
        self.found[places[keys[places] == grams]] = True

    def shares(self) -> NDArray[np.float64]:
        """Of each text of the first data set that is kept, how much of it stands in the second."""
        assert self.sorted is not None
        keys, owners = self.sorted
        firsts = np.searchsorted(keys, keys)  # the same run may stand in several texts: what was found is marked at the first
        found, count = np.bincount(owners[self.found[firsts]], minlength=self.kept), np.bincount(owners, minlength=self.kept)
        return found / np.maximum(count, 1)
