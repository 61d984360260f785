"""Pairs derived again from where their tokens come from: every token here is its own place in the text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.data.shards import Documents
from unmask.data.stream import Sequences, gathered
from unmask.errors import UserError
from unmask.objectives.nsp import KINDS, Pairs

CLS, SEP = 10_000_001, 10_000_002


def made(lengths: list[list[int]], first: int = 0) -> Documents:
    """Documents of sentences of these lengths, whose tokens count 0, 1, 2, ..."""
    sentences = np.cumsum([0, *(length for one in lengths for length in one)])
    return Documents(np.arange(first, first + len(lengths)), np.arange(sentences[-1]), sentences, np.cumsum([0, *map(len, lengths)]))


def many(count: int, seed: int = 0, sentence: int = 30, longest: int = 20) -> Documents:
    draw = np.random.default_rng(seed)
    return made([draw.integers(1, sentence + 1, draw.integers(1, longest + 1)).tolist() for _ in range(count)])


def pairs(kind: str, longest: int = 64, short: float = 0.1, seed: int = 0) -> Pairs:
    return Pairs(kind, CLS, SEP, longest, short, seed)


@dataclass(frozen=True)
class Text:
    """A run of tokens, and where it stands among the sentences and documents."""

    start: int
    stop: int
    document: int
    whole_front: bool
    whole_back: bool

    @classmethod
    def of(cls, tokens: list[int], documents: Documents, bounds: set[int]) -> Text:
        assert tokens == list(range(tokens[0], tokens[-1] + 1)), "a text is one run"
        start, stop = tokens[0], tokens[-1] + 1
        document = int(np.searchsorted(documents.bounds[1:], start, "right"))
        assert stop <= documents.bounds[document + 1], "a text is of one document"
        return cls(start, stop, document, start in bounds, stop in bounds)


def read(documents: Documents, sequences: Sequences) -> list[tuple[Text, ...]]:
    """The texts of each sequence, from nothing but its tokens."""
    rows = gathered(documents, sequences, np.arange(len(sequences.samples)))
    found, bounds = [], set(documents.sentences.tolist())
    for tokens, segments in zip(*(np.split(one, np.cumsum(rows.lengths)[:-1]) for one in (rows.tokens, rows.segments)), strict=True):
        assert tokens[0] == CLS
        assert tokens[-1] == SEP
        ends = np.flatnonzero(tokens == SEP).tolist()
        assert segments.tolist() == [number for number, (a, b) in enumerate(zip([-1, *ends], ends, strict=False)) for _ in range(b - a)]
        found.append(tuple(Text.of(tokens[a + 1 : b].tolist(), documents, bounds) for a, b in zip([0, *ends], ends, strict=False)))
    return found


TEXTS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=6), min_size=2, max_size=8).filter(lambda one: max(map(len, one)) > 1)
STEADY = settings(max_examples=60, deadline=None, derandomize=True)


@STEADY
@given(lengths=TEXTS, longest=st.integers(8, 80), seed=st.integers(0, 9), kind=st.sampled_from(["next", "order"]), short=st.sampled_from([0.0, 0.1, 1.0]))
def test_a_label_says_where_the_second_text_comes_from(lengths: list[list[int]], longest: int, seed: int, kind: str, short: float) -> None:
    documents = made(lengths)
    cut = pairs(kind, longest, short, seed).cut(documents, epoch=3)
    assert (cut.lengths <= longest).all()
    assert len(np.unique(cut.samples)) == len(cut.samples)
    for label, length, sample, (first, second) in zip(cut.labels["next"], cut.lengths, cut.samples.tolist(), read(documents, cut), strict=True):
        full = length == longest  # only what is too long is cut inside a sentence
        if kind == "next" and label:
            assert first.document != second.document
        else:
            before, after = (second, first) if label else (first, second)
            assert before.document == after.document
            assert before.stop == after.start or (full and before.stop < after.start and not before.whole_back)
            first, second = before, after
        assert first.whole_front or (full and first.whole_back), "it gives way at one end"
        assert first.whole_back or full
        assert second.whole_front
        assert second.whole_back or full
        assert sample == first.document << 32 | first.start - int(documents.bounds[first.document])


@STEADY
@given(lengths=TEXTS, seed=st.integers(0, 9), kind=st.sampled_from(["next", "order"]))
def test_nothing_is_lost_but_a_last_sentence_alone(lengths: list[list[int]], seed: int, kind: str) -> None:
    """Where all fits: from one pair to the next a document is read on without gap or overlap, and a wrong second text leaves the right one to be read."""
    documents = made(lengths)
    cut = pairs(kind, 400, 0.5, seed).cut(documents, 0)
    reached = documents.bounds[:-1].tolist()
    for label, (first, second) in zip(cut.labels["next"], read(documents, cut), strict=True):
        own = [first] if kind == "next" and label else sorted([first, second], key=lambda text: text.start)
        for text in own:
            assert reached[text.document] == text.start
            reached[text.document] = text.stop
    for document, stop in enumerate(reached):
        last = documents.sentences[documents.documents[document + 1] - 1]
        assert stop in (last, documents.bounds[document + 1]), "it ends with the document, or before its last sentence"


@STEADY
@given(lengths=st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=6), min_size=1, max_size=8), longest=st.integers(8, 80), seed=st.integers(0, 9))
def test_single_texts_hold_every_token_once(lengths: list[list[int]], longest: int, seed: int) -> None:
    documents = made(lengths)
    cut = pairs("none", longest, 0.3, seed).cut(documents, 0)
    assert (cut.lengths <= longest).all()
    assert not cut.labels
    texts = [text for (text,) in read(documents, cut)]
    assert [token for text in texts for token in range(text.start, text.stop)] == documents.tokens.tolist()
    sizes = np.diff(documents.sentences)
    for text in texts:
        inside = sizes[np.searchsorted(documents.sentences, text.start, "right") - 1]
        assert text.whole_back or text.stop - text.start < inside, "only a sentence that does not fit is cut"
    assert len(np.unique(cut.samples)) == len(texts)


@pytest.mark.parametrize("kind", ["none", "order"])
def test_a_sequence_is_as_long_as_it_can_be(kind: str) -> None:
    """Without short ones: the sentence that comes next would have been too much."""
    documents = many(500)
    ends = documents.bounds[1:]
    cut = pairs(kind, 128, 0.0).cut(documents, 0)
    for length, texts in zip(cut.lengths, read(documents, cut), strict=True):
        stop = max(text.stop for text in texts)
        if stop < ends[texts[0].document]:
            after = documents.sentences[np.searchsorted(documents.sentences, stop, "right")]
            assert length + after - stop > 128


@pytest.mark.parametrize("kind", ["next", "order"])
def test_half_of_the_pairs_are_wrong(kind: str) -> None:
    labels = pairs(kind).cut(many(8000), 0).labels["next"]
    assert len(labels) > 20_000
    assert abs(labels.sum() - len(labels) / 2) < 5 * (len(labels) / 4) ** 0.5
    assert abs(np.corrcoef(labels[:-1], labels[1:])[0, 1]) < 5 / len(labels) ** 0.5


def test_a_wrong_text_is_of_any_document() -> None:
    """Each of the others as likely, and any of its sentences."""
    documents = made([[4] * 10] * 12)
    counts, places = np.zeros((12, 12), int), np.zeros(10, int)
    for epoch in range(400):
        cut = pairs("next", 64, 0.0).cut(documents, epoch)
        for label, (first, second) in zip(cut.labels["next"], read(documents, cut), strict=True):
            if label:
                counts[first.document, second.document] += 1
                places[(second.start - documents.bounds[second.document]) // 4] += 1
    assert not counts.diagonal().any()
    others = counts[~np.eye(12, dtype=bool)]
    assert np.abs(others - counts.sum() / 132).max() < 5 * (counts.sum() / 132) ** 0.5
    assert np.abs(places - counts.sum() / 10).max() < 5 * (counts.sum() / 10) ** 0.5


@pytest.mark.parametrize("kind", ["next", "order"])
def test_what_is_too_long_gives_way_at_both_ends(kind: str) -> None:
    """Two sentences of 50 tokens in a room of 61: each comes down to half of it, the first by its front as often as by its back."""
    documents = made([[50, 50]] * 2000)
    cut = pairs(kind, 64, 0.0).cut(documents, 0)
    found = [
        sorted(texts, key=lambda text: text.start)
        for label, texts in zip(cut.labels["next"], read(documents, cut), strict=True)
        if kind == "order" or not label
    ]
    assert {tuple(text.stop - text.start for text in texts) for texts in found} == {(31, 30)}
    assert {texts[1].start % 100 for texts in found} == {50}
    counts = Counter(texts[0].start % 100 for texts in found)
    assert set(counts) == {0, 19}
    assert abs(counts[0] - len(found) / 2) < 5 * (len(found) / 4) ** 0.5


def test_lengths_do_not_tell_the_label() -> None:
    """Of both labels the second text is of whole sentences and at least one, until both together are too long."""
    documents = many(3000, longest=12)
    cut = pairs("next", 128).cut(documents, 0)
    broken = {0: 0, 1: 0}
    for label, length, (_, second) in zip(cut.labels["next"].tolist(), cut.lengths, read(documents, cut), strict=True):
        broken[label] += not second.whole_back and length < 128
    assert broken == {0: 0, 1: 0}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("short", [0.0, 0.1, 0.5])
def test_as_many_are_short_as_were_asked_for(kind: str, short: float) -> None:
    """In long documents of sentences of one token all others are full; a wrong second text may come to the end of its document and be left out here."""
    documents = made([[1] * 5000] * 20)
    cut = pairs(kind, 64, short).cut(documents, 0)
    inside = (cut.samples & np.uint64(2**32 - 1)) < 4800
    special = 2 if kind == "none" else 3
    chosen = inside & (cut.labels["next"] == 0) if kind == "next" else inside
    lengths = cut.lengths[chosen] - special
    room = 64 - special
    expected = short * (room - 2) / (room - 1)  # any length from 2 to the room is as likely
    assert abs((lengths < room).mean() - expected) <= 5 * (expected * (1 - expected) / len(lengths)) ** 0.5
    if short:
        counts = np.bincount(lengths[lengths < room], minlength=room)[2:]
        assert np.abs(counts - counts.mean()).max() < 5 * counts.mean() ** 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_is_cut_the_same_wherever_it_stands(kind: str) -> None:
    """By its number, not by its place among the others; but which wrong text it is given depends on what there is."""
    documents = many(60)
    whole = pairs(kind, 400).cut(documents, 5)
    lengths = np.diff(documents.sentences)
    parts = [lengths[documents.documents[i] : documents.documents[i + 1]].tolist() for i in range(20, 40)]
    some = pairs(kind, 400).cut(made(parts, first=20), 5)
    there = (whole.samples >> np.uint64(32) >= 20) & (whole.samples >> np.uint64(32) < 40)
    assert np.array_equal(whole.samples[there], some.samples)
    for name, labels in some.labels.items():
        assert np.array_equal(whole.labels[name][there], labels)
    if kind != "next":
        assert np.array_equal(whole.counts[there], some.counts)


@pytest.mark.parametrize("kind", ["next", "order"])
def test_another_epoch_or_seed_cuts_otherwise(kind: str) -> None:
    documents = many(200)
    found = [pairs(kind, seed=seed).cut(documents, epoch) for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))]
    assert np.array_equal(found[0].starts, found[1].starts)
    for one, other in ((0, 2), (0, 3), (2, 3)):
        same = {(*starts,) for starts in found[one].starts.tolist()} & {(*starts,) for starts in found[other].starts.tolist()}
        assert len(same) < 0.3 * len(found[one].starts)


def test_sentences_alone_pair_with_others() -> None:
    """A document of one sentence gives no pair, but may be the wrong text of another."""
    documents = made([[5], [5, 5, 5, 5], [5]])
    owners, partners = set(), set()
    for epoch in range(30):
        cut = pairs("next").cut(documents, epoch)
        for label, (first, second) in zip(cut.labels["next"], read(documents, cut), strict=True):
            owners.add(first.document)
            partners |= {second.document} if label else set()
    assert owners == {1}
    assert partners == {0, 2}


@pytest.mark.parametrize("kind", ["next", "order"])
def test_documents_of_one_sentence_make_no_pairs(kind: str) -> None:
    assert len(pairs(kind).cut(made([[7]] * 10), 0).samples) == 0


def test_a_single_document_has_no_wrong_sentence() -> None:
    documents = made([[5, 5, 5, 5]])
    assert len(pairs("next").cut(documents, 0).samples) == 0
    assert len(pairs("order").cut(documents, 0).samples)


@pytest.mark.parametrize(
    ("change", "says"),
    [({"kind": "nsp"}, "there are no pairs 'nsp'; there are next, order, none"), ({"longest": 7}, "sequences of 7 tokens hold no pair; ask for 8 or more")],
)
def test_settings_that_cannot_be(change: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=f"^{says}$"):
        Pairs(**{"kind": "next", "cls": CLS, "sep": SEP, **change})


def test_they_are_what_they_were() -> None:
    """A run that is resumed by a later version must see the same pairs."""
    cut = pairs("next", 32, 0.5).cut(made([[3, 9, 4, 12, 5], [8, 2], [6, 6, 6, 6]]), 1)
    assert (cut.samples.tolist(), cut.labels["next"].tolist()) == ([0, 12, 4294967296, 8589934592, 8589934604], [0, 0, 0, 1, 1])
    assert cut.starts[:, [1, 3]].tolist() == [[0, 3], [12, 28], [33, 41], [43, 41], [55, 28]]
    assert cut.counts[:, [1, 3]].tolist() == [[3, 9], [16, 5], [8, 2], [12, 2], [6, 5]]
