"""Pieces as the plainest way to join pairs finds them: all counts taken anew after every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from unmask.tokenizer.merges import LONGEST_PIECE, MASK, RANKINGS, SHIFT, ByFrequency, ByLikelihood, Segments

Pair = tuple[int, int]
LETTERS = "abcd"


def symbols_of(word: str) -> list[int]:
    """The letters that begin words come first, then the same letters further on."""
    return [LETTERS.index(letter) + len(LETTERS) * (place > 0) for place, letter in enumerate(word)]


def plainly(words: Mapping[str, int], by: str, least: int, joins: int) -> list[Pair]:
    """The pairs joined, in order; a symbol is named by its spelling, so one made in two ways is one."""
    split = {word: symbols_of(word) for word in words}
    spelled = [*LETTERS, *(f"##{letter}" for letter in LETTERS)]
    joined: list[Pair] = []
    for _ in range(joins):
        pairs: Counter[Pair] = Counter()
        alone: Counter[int] = Counter()
        for word, number in words.items():
            for symbol in split[word]:
                alone[symbol] += number
            for pair in zip(split[word], split[word][1:], strict=False):
                pairs[pair] += number
        score = {pair: number if by == "frequency" else number / (alone[pair[0]] * alone[pair[1]]) for pair, number in pairs.items()}
        allowed = [pair for pair in pairs if pairs[pair] >= least and len("".join(spelled[s].removeprefix("##") for s in pair)) <= LONGEST_PIECE]
        if not allowed:
            break
        left, right = min((-score[pair], pair) for pair in allowed)[1]
        joined.append((left, right))
        spelling = spelled[left] + spelled[right].removeprefix("##")
        if spelling not in spelled:
            spelled.append(spelling)
        for symbols in split.values():
            place = 0
            while place + 1 < len(symbols):
                if (symbols[place], symbols[place + 1]) == (left, right):
                    symbols[place : place + 2] = [spelled.index(spelling)]
                place += 1
    return joined


def quickly(words: Mapping[str, int], by: str, least: int, joins: int) -> list[Pair]:
    row, weights = [-1], [0]
    for word, number in words.items():
        row += [*symbols_of(word), -1]
        weights += [number] * (len(word) + 1)
    segments = Segments(np.array(row, np.int32), np.array(weights, np.int64), 2 * len(LETTERS))
    spelled, lengths = [*LETTERS, *(f"##{letter}" for letter in LETTERS)], [1] * (2 * len(LETTERS))
    ranking = RANKINGS[by](segments.amounts, lengths, least)
    ranking.change(*segments.pairs(), range(len(spelled)))
    joined: list[Pair] = []
    while len(joined) < joins and (pair := ranking.best()) is not None:
        left, right = pair >> SHIFT, pair & MASK
        joined.append((left, right))
        spelling = spelled[left] + spelled[right].removeprefix("##")
        new = spelled.index(spelling) if spelling in spelled else len(spelled)
        if new == len(spelled):
            spelled.append(spelling)
            lengths.append(lengths[left] + lengths[right])
        ranking.change(*segments.join(left, right, new), {left, right, new})
    return joined


@pytest.mark.parametrize("by", RANKINGS)
@given(
    words=some.dictionaries(some.text("ab", min_size=1, max_size=9) | some.text(LETTERS, min_size=1, max_size=12), some.integers(1, 9), min_size=1, max_size=25)
)
@settings(deadline=None, max_examples=300)
def test_as_the_plainest_way(by: str, words: dict[str, int]) -> None:
    for least in (1, 2, 5):
        assert quickly(words, by, least, 60) == plainly(words, by, least, 60)


@pytest.mark.parametrize("by", RANKINGS)
@pytest.mark.parametrize("word", ["a" * 2, "a" * 3, "a" * 7, "ab" * 8, "aab" * 5, "abab" * 3 + "b"])
def test_runs_are_joined_from_the_left(by: str, word: str) -> None:
    assert quickly({word: 3, "b" + word: 2}, by, 2, 50) == plainly({word: 3, "b" + word: 2}, by, 2, 50)


@pytest.mark.parametrize("by", RANKINGS)
def test_no_piece_is_longer_than_64(by: str) -> None:
    joined = quickly({"a" * 100: 5}, by, 2, 1000)
    assert joined == plainly({"a" * 100: 5}, by, 2, 1000)
    assert joined


def test_the_order_of_words_does_not_matter() -> None:
    words = {"abcabd": 4, "bcd": 4, "dcba": 4, "aabb": 4, "cab": 8}
    for by in RANKINGS:
        assert quickly(words, by, 2, 50) == quickly(dict(reversed(words.items())), by, 2, 50)


def test_the_two_ways_differ() -> None:
    """A pair of rare letters that are always together is worth more by likelihood than a frequent one of frequent letters."""
    words = {"ab": 90, "ac": 80, "bd": 3}
    assert quickly(words, "frequency", 2, 1) == [(0, 5)]
    assert quickly(words, "likelihood", 2, 1) == [(1, 7)]


@pytest.mark.parametrize("kind", [ByFrequency, ByLikelihood])
def test_nothing_to_join(kind: type[ByFrequency] | type[ByLikelihood]) -> None:
    segments = Segments(np.array([-1, 0, -1, 1, -1], np.int32), np.array([0, 5, 5, 3, 3], np.int64), 2)
    ranking = kind(segments.amounts, [1, 1], 2)
    ranking.change(*segments.pairs(), range(2))
    assert ranking.best() is None


def test_numbers_beyond_32_bits() -> None:
    words = {"ab": 2**40 + 1, "cd": 2**40, "abcd": 3}
    assert quickly(words, "frequency", 2, 2) == [(0, 5), (2, 7)]
