"""Masks counted on a million tokens, and derived again from the tokens; each the same wherever its sequence lies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.data.stream import IGNORED, Rows
from unmask.errors import UserError
from unmask.objectives.mlm import UNITS, Masking, Numbers, Pieces
from unmask.tokenizer import Tokenizer

PAD, UNK, CLS, SEP, MASK = range(5)
SIZE, INNER = 1000, 700  # pieces from 700 on continue a word
PIECES = Pieces(MASK, np.arange(SIZE) < 5, np.arange(SIZE) >= INNER)
STEADY = settings(max_examples=40, deadline=None, derandomize=True)


def rows(parts: Sequence[Rows]) -> Rows:
    """Sequences end to end, as a batch has them."""
    return Rows(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("tokens", "segments", "positions", "samples", "given", "lengths")))


def sequence(sample: int, *texts: Sequence[int]) -> Rows:
    """[CLS] text [SEP], or [CLS] text [SEP] text [SEP]."""
    tokens, given = [CLS], [False]
    for text in texts:
        tokens += [*text, SEP]
        given += [True] * len(text) + [False]
    size = len(tokens)
    return Rows(np.array(tokens), np.zeros(size, int), np.arange(size), np.full(size, sample, np.uint64), np.array(given), np.array([size]))


@cache
def million() -> Rows:
    """A million tokens in sequences of two texts each, some of them cut inside a word, with a few [UNK]."""
    draw = np.random.default_rng(0)
    found, count = [], 0
    while count < 1_000_000:
        texts = [draw.integers(5, SIZE, draw.integers(1, 250)) for _ in range(2)]
        for text in texts:
            text[draw.random(len(text)) < 0.01] = UNK
        found.append(sequence(int(draw.integers(2**62)), *texts))
        count += len(found[-1].tokens)
    return rows(found)


@cache
def words() -> Numbers:
    """The word that each of the million tokens is of, counted one by one; 0 for what is of none."""
    found, number, inside = [], 0, False
    for token, real in zip(million().tokens.tolist(), million().given.tolist(), strict=True):
        number += real and (token < INNER or not inside)
        found.append(number if real else 0)
        inside = real
    return np.array(found)


@cache
def firsts() -> tuple[Numbers, Numbers]:
    """Where the words begin, and how many others of their text stand before each."""
    found = np.flatnonzero(np.diff(words(), prepend=0) > 0)
    text = np.cumsum(~million().given)[found]
    return found, np.arange(len(found)) - np.searchsorted(text, text)


@cache
def masked(unit: str, rate: float = 0.15, epoch: int = 0, seed: int = 0) -> tuple[Numbers, Numbers, Numbers]:
    """What is shown of the million, the places that are asked for, and their labels."""
    shown, targets = Masking(PIECES, rate, unit, seed=seed).ask(million(), epoch)
    real = targets["words.labels"] != IGNORED
    return shown, targets["words.rows"][real], targets["words.labels"][real]


def free() -> Numbers:
    return million().given & (million().tokens >= 5)


def chosen(unit: str, **settings: float) -> Numbers:
    found = np.zeros(len(million().tokens), bool)
    found[masked(unit, **settings)[1]] = True
    return found


@pytest.mark.parametrize("rate", [0.15, 0.4])
@pytest.mark.parametrize("unit", UNITS)
def test_the_rate_is_as_asked(unit: str, rate: float) -> None:
    """Sequences are chosen from independently, whatever the unit: so their own deviations say how far the sum may be off."""
    sequences = np.repeat(np.arange(len(million().lengths)), million().lengths)
    off = np.bincount(sequences, (chosen(unit, rate=rate) - rate) * free())
    assert abs(off.sum()) < 5 * (off**2).sum() ** 0.5
    assert abs(off.sum() / free().sum()) < 0.004
    if unit == "piece":
        assert abs(off.sum()) < 5 * (free().sum() * rate * (1 - rate)) ** 0.5


@pytest.mark.parametrize("unit", UNITS)
def test_of_ten_eight_are_masked_one_is_another_and_one_itself(unit: str) -> None:
    shown, places, labels = masked(unit)
    one, count = shown[places], len(places)
    itself = 0.1 + 0.1 / (SIZE - 5)  # a piece put in may be the one that was there
    for found, share in ((one == MASK, 0.8), (one == labels, itself), ((one != MASK) & (one != labels), 0.9 - itself + 0.1 - 0.8)):
        assert abs(found.sum() - share * count) < 5 * (count * share * (1 - share)) ** 0.5
    put = np.bincount(one[(one != MASK) & (one != labels)], minlength=SIZE)
    assert not put[:5].any()
    assert put[5:].min() > 0
    mean = put[5:].mean()
    assert abs(((put[5:] - mean) ** 2 / mean).sum() - (SIZE - 6)) < 5 * (2 * (SIZE - 6)) ** 0.5, "all pieces are put in as often"


@pytest.mark.parametrize("shares", [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.5, 0.5)], ids=str)
def test_other_shares(shares: tuple[float, float]) -> None:
    shown, targets = Masking(PIECES, mask=shares[0], other=shares[1]).ask(million(), 0)
    labels = targets["words.labels"][targets["words.labels"] != IGNORED]
    one = shown[targets["words.rows"][: len(labels)]]
    assert (one == MASK).mean() == pytest.approx(shares[0], abs=0.01)
    assert (one == labels).mean() == pytest.approx(1 - sum(shares), abs=0.01)


@pytest.mark.parametrize("unit", UNITS)
def test_what_is_asked_is_what_was_there(unit: str) -> None:
    shown, places, labels = masked(unit)
    assert np.array_equal(labels, million().tokens[places])
    assert (np.diff(places) > 0).all()
    assert free()[places].all(), "no special piece is asked for, neither one put in nor one of the text"
    rest = np.ones(len(shown), bool)
    rest[places] = False
    assert np.array_equal(shown[rest], million().tokens[rest])


@pytest.mark.parametrize("unit", ["word", "span"])
def test_words_are_chosen_whole(unit: str) -> None:
    found, of = chosen(unit)[free()], words()[free()]
    sizes, hits = np.bincount(of), np.bincount(of, found)
    assert (sizes > 3).any()
    assert set(np.unique(hits[sizes > 0] / sizes[sizes > 0]).tolist()) == {0.0, 1.0}


def test_words_are_chosen_apart() -> None:
    """A word is as likely to be chosen after one that is as after one that isn't; a piece of a word too, where pieces are the unit."""
    for unit, places in (("word", firsts()[0]), ("piece", np.flatnonzero(million().given))):
        found = chosen(unit)[places][free()[places]]
        after = found[1:][found[:-1]]
        assert abs(after.mean() - 0.15) < 5 * (0.15 * 0.85 / len(after)) ** 0.5


def starts(rate: float) -> float:
    """How likely a span begins at a word, by trial: from none of ten words does one reach here, each word further having four chances of five."""
    tried = np.linspace(0, 1, 1_000_001)
    none = np.prod([1 - tried * 0.8**back for back in range(10)], axis=0)
    return float(tried[np.argmin(np.abs(1 - none - rate))])


@pytest.mark.parametrize("rate", [0.15, 0.4])
def test_spans_are_runs_of_words(rate: float) -> None:
    """After a word that is not chosen, one is where a span begins, and nowhere else: so runs are as long as that."""
    places, nth = firsts()
    found, able = chosen("span", rate=rate)[places], free()[places]
    fresh = ~found[:-1] & able[:-1] & able[1:] & (nth[1:] > 0)
    share = starts(rate)
    assert abs(found[1:][fresh].mean() - share) < 5 * (share * (1 - share) / fresh.sum()) ** 0.5


@pytest.mark.parametrize("unit", UNITS)
def test_no_place_in_a_text_is_chosen_more_than_another(unit: str) -> None:
    """No others stand before the first words, from which a span could reach them; they are chosen as often nevertheless."""
    places, nth = firsts()
    found = chosen(unit)[places]
    for place in range(12):
        some = found[(nth == place) & free()[places]]
        assert len(some) > 5000
        assert abs(some.mean() - 0.15) < 5 * (0.15 * 0.85 / len(some)) ** 0.5, place


def test_spans_do_not_go_over_the_end_of_a_text() -> None:
    """Whatever the first text is made of, many words or one, the masks of the second one stay."""
    masking = Masking(PIECES, 0.3, "span")
    draw = np.random.default_rng(0)
    for sample in range(200):
        second = draw.integers(5, SIZE, 30)
        found = set()
        for first in (np.full(20, 5), np.full(20, SIZE - 1), draw.integers(5, SIZE, 20)):
            shown, targets = masking.ask(sequence(sample, first, second), 0)
            found.add((*shown[22:].tolist(), *(targets["words.rows"][targets["words.rows"] > 21]).tolist()))
        assert len(found) == 1


TEXTS = st.lists(st.lists(st.lists(st.integers(5, SIZE - 1), min_size=1, max_size=30), min_size=1, max_size=2), min_size=1, max_size=8)


@STEADY
@given(texts=TEXTS, unit=st.sampled_from(UNITS), data=st.data())
def test_a_mask_is_the_same_in_any_batch(texts: list[list[list[int]]], unit: str, data: st.DataObject) -> None:
    parts = [sequence(number * 7, *text) for number, text in enumerate(texts)]
    masking = Masking(PIECES, 0.3, unit)
    alone = [answered(masking, part) for part in parts]
    order = data.draw(st.permutations(range(len(parts))))
    assert answered(masking, rows([parts[i] for i in order])) == [one for i in order for one in alone[i]]


def answered(masking: Masking, batch: Rows, epoch: int = 0) -> list[tuple[int, int]]:
    """For each token what is shown, and what is asked."""
    shown, targets = masking.ask(batch, epoch)
    asked = np.full(len(shown), IGNORED)
    real = targets["words.labels"] != IGNORED
    asked[targets["words.rows"][real]] = targets["words.labels"][real]
    return list(zip(shown.tolist(), asked.tolist(), strict=True))


@pytest.mark.parametrize("unit", ["piece", "word"])
def test_epochs_and_seeds_have_nothing_to_do_with_one_another(unit: str) -> None:
    places = firsts()[0][free()[firsts()[0]]]
    one = chosen(unit)[places]
    for other in (chosen(unit, epoch=1)[places], chosen(unit, seed=1)[places]):
        assert abs((one & other).mean() - 0.15**2) < 5 * (0.0225 * 0.9775 / len(places)) ** 0.5


def test_other_spans_in_another_epoch_or_with_another_seed() -> None:
    for other in (chosen("span", epoch=1), chosen("span", seed=1)):
        assert 0.021 < (chosen("span") & other).sum() / free().sum() < 0.024


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("size", [512, 4096])
def test_as_many_rows_for_as_many_tokens(unit: str, size: int) -> None:
    """Filled up by rows that count nothing; words of these are 1.4 pieces long, as English ones are."""
    masking = Masking(PIECES, unit=unit)
    counts = set()
    for batch in batches(size):
        targets = masking.ask(batch, 0)[1]
        found, labels = targets["words.rows"], targets["words.labels"]
        counts.add((len(found), len(labels)))
        real = int((labels != IGNORED).sum())
        assert (labels[:real] != IGNORED).all()
        assert not found[real:].any()
    assert counts == {(masking.most(size), masking.most(size))}
    assert masking.most(size) % 8 == 0
    assert masking.most(size) < {"piece": 0.26, "word": 0.32, "span": 0.54}[unit] * size


def batches(size: int) -> Iterator[Rows]:
    """The million in pieces of one size."""
    whole = million()
    for start in range(0, 400_000, size):
        part = slice(start, start + size)
        yield Rows(whole.tokens[part], whole.segments[part], whole.positions[part], whole.samples[part], whole.given[part], np.array([size]))


def test_more_rows_where_chance_wants_more() -> None:
    """It cannot be left out, for it is shown masked: so a batch has another shape then."""
    texts = rows([sequence(0, [5, *[SIZE - 1] * 62])])
    masking = Masking(PIECES, 0.02, "word")
    counts = {}
    for epoch in range(200):
        labels = masking.ask(texts, epoch)[1]["words.labels"]
        counts[int((labels != IGNORED).sum())] = len(labels)
    assert counts == {0: masking.most(65), 63: 63}
    assert masking.most(65) < 63


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"unit": "letter"}, "masks are of no unit 'letter'; they are of piece, word, span"),
        ({"rate": 0.0}, "a rate of 0.0 with shares of 0.8 and 0.1 cannot be; .*"),
        ({"rate": 1.0}, "a rate of 1.0 .*"),
        ({"rate": float("nan")}, "a rate of nan .*"),
        ({"mask": -0.1}, ".* shares of -0.1 and 0.1 cannot be; .*"),
        ({"other": -0.1}, ".* shares of 0.8 and -0.1 cannot be; .*"),
        ({"mask": 0.9, "other": 0.2}, ".* shares of 0.9 and 0.2 cannot be; a rate lies between 0 and 1, shares make up 1 at most"),
    ],
    ids=str,
)
def test_settings_that_cannot_be(change: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=f"^{says}$") as told:
        replace(Masking(PIECES), **change)
    assert "\n" not in str(told.value)


def test_pieces_of_a_vocabulary() -> None:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "##mask", "##", "a", "##a", "#", "b##"]
    pieces = Pieces.of(Tokenizer.from_vocabulary({name: i for i, name in enumerate(names)}, {"mask_token": "##mask"}))
    assert pieces.mask == MASK
    assert np.flatnonzero(pieces.special).tolist() == [PAD, UNK, CLS, SEP, MASK]
    assert np.flatnonzero(pieces.inner).tolist() == [7]
    assert pieces.plain.tolist() == [5, 6, 7, 8, 9]


def test_pieces_of_a_real_one(minilm: Path, vocabulary: list[str]) -> None:
    pieces = Pieces.of(Tokenizer.load(minilm))
    assert len(pieces.special) == len(pieces.inner) == 30522
    assert pieces.mask == vocabulary.index("[MASK]")
    assert {vocabulary[i] for i in np.flatnonzero(pieces.special)} == {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    assert {vocabulary[i] for i in np.flatnonzero(pieces.inner)} == {piece for piece in vocabulary if piece.startswith("##")}


@pytest.mark.parametrize(("unit", "digest"), [("piece", "6ce6fedd22566278"), ("word", "2a5fed8c05580236"), ("span", "a6b57a3ea6868b28")])
def test_they_are_what_they_were(unit: str, digest: str) -> None:
    """A run that is resumed by a later version must see the same masks."""
    text = [5 + i * i * 31 % 995 for i in range(400)]
    shown, targets = Masking(PIECES, unit=unit, seed=5).ask(rows([sequence(9, text, text[::-1]), sequence(2**40, text)]), 3)
    data = b"".join(one.astype("<i8").tobytes() for one in (shown, targets["words.rows"], targets["words.labels"]))
    assert hashlib.sha256(data).hexdigest()[:16] == digest
