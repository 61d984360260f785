"""Batches by number: every document once an epoch, the same for any number of ranks, and from any place on."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import corpora
from unmask.data.batch import Batch
from unmask.data.shards import Corpus, Documents
from unmask.data.stream import FEWEST, IGNORED, Place, Stream
from unmask.errors import UserError
from unmask.objectives.base import Reading
from unmask.objectives.mlm import UNITS, Masking, Pieces
from unmask.objectives.nsp import KINDS, Pairs
from unmask.tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, UNK, CLS, SEP, MASK = range(5)
PIECES = Pieces(MASK, np.arange(1000) < 5, np.arange(1000) >= 700)
LETTERS = list("abcdefghijklmnopqrstuvwxyz")


class Held(Corpus):
    """Documents in memory, of sentences of these lengths; each token is a function of its document and place."""

    def __init__(self, lengths: Sequence[Sequence[int]], tokenizer: str = "one") -> None:
        self.place, self.index, self.lengths = "held", {"tokenizer": tokenizer}, lengths

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        return sum(map(sum, self.lengths))

    def fetch(self, numbers: Any) -> Documents:
        found = [self.lengths[number] for number in numbers]
        sentences = np.cumsum([0, *itertools.chain.from_iterable(found)])
        tokens = [5 + (number * 7919 + np.arange(sum(one)) * 31) % 995 for number, one in zip(numbers, found, strict=True)]
        return Documents(np.asarray(numbers), np.concatenate(tokens).astype(np.uint16), sentences, np.cumsum([0, *map(len, found)]))


def mixed(count: int, seed: int = 0, mean: float = 3.0) -> Held:
    """Log-normal lengths, of documents and of their sentences."""
    draw = np.random.default_rng(seed)
    counts = np.clip(draw.lognormal(1.5, 1, count), 1, 60).astype(int)
    return Held([np.clip(draw.lognormal(mean, 0.7, n), 1, 200).astype(int).tolist() for n in counts])


def reading(kind: str = "next", unit: str = "piece", longest: int = 64) -> Reading:
    return Reading(Pairs(kind, CLS, SEP, longest), Masking(PIECES, unit=unit))


def tensors(batch: Batch) -> dict[str, Tensor]:
    assert batch.ids is not None
    return {**batch.inputs, "bounds": batch.layout.bounds, **batch.targets, "ids": batch.ids}  # type: ignore[attr-defined]


def same(one: Batch, other: Batch) -> bool:
    left, right = tensors(one), tensors(other)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def epoch(stream: Stream, number: int = 0) -> list[Batch]:
    """All batches of one."""
    found = []
    for place, batch in stream.batches(Place(number)):
        found.append(batch)
        if place.epoch > number:
            return found
    raise AssertionError


# ---- an epoch


def order(stream: Stream, number: int = 0) -> list[int]:
    return [document for block in range(stream.blocks) for document in stream.documents(number, block).numbers.tolist()]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(size=st.integers(1, 400), tokens=st.integers(64, 300), seed=st.integers(0, 5), number=st.integers(0, 5))
def test_an_epoch_meets_every_document_once(size: int, tokens: int, seed: int, number: int) -> None:
    stream = Stream(Held([[20, 20]] * size), reading(), tokens=tokens, seed=seed)
    assert sorted(order(stream, number)) == list(range(size))
    sizes = {len(stream.documents(number, block)) for block in range(stream.blocks)}
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= min(size, FEWEST // 2), "no block is left with too few to find a wrong sentence in"


@pytest.mark.parametrize("size", range(33, 200, 17))
def test_every_block_has_documents_for_pairs(size: int) -> None:
    assert len(epoch(Stream(Held([[20, 20, 20]] * size), reading(), tokens=64))) > size / 2


def test_every_token_of_an_epoch_is_read_once() -> None:
    corpus = mixed(700)
    stream = Stream(corpus, reading("none"), tokens=512)
    assert stream.blocks > 1
    for number in (0, 3):
        found = epoch(stream, number)
        assert sum(int(batch.layout.lengths.sum()) - 2 * len(batch.layout.lengths) for batch in found) == corpus.tokens
        samples = torch.cat([batch.ids for batch in found if batch.ids is not None]).tolist()
        assert len(set(samples)) == len(samples)
        assert {sample >> 32 for sample in samples} == set(range(700))


@pytest.mark.parametrize("kind", KINDS)
def test_no_two_sequences_of_an_epoch_have_one_number(kind: str) -> None:
    samples = torch.cat([batch.ids for batch in epoch(Stream(mixed(500), reading(kind), tokens=512)) if batch.ids is not None])
    assert len(samples.unique()) == len(samples) > 1000


def test_epochs_and_seeds_are_shuffled_apart() -> None:
    corpus = Held([[20, 20]] * 3000)
    found = [order(Stream(corpus, reading(), tokens=256, seed=seed), number) for seed, number in ((0, 0), (0, 1), (1, 0))]
    assert found[0] == order(Stream(corpus, reading(), tokens=256), 0)
    for one, other in itertools.combinations([*found, list(range(3000))], 2):
        assert sum(a == b for a, b in zip(one, other, strict=True)) < 12
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / 3000**0.5


def test_another_epoch_cuts_and_masks_otherwise() -> None:
    """The same document, in streams that differ in nothing else."""
    found = []
    for number in (0, 1, 0):
        cut: dict[int, list[list[int]]] = {}
        for batch in epoch(Stream(mixed(60), reading("order"), tokens=512), number):
            assert batch.ids is not None
            for sample, label, tokens in zip(batch.ids, batch.targets["next.labels"], batch.layout.split(batch.inputs["tokens"]), strict=True):
                cut.setdefault(int(sample) >> 32, []).append([int(sample), int(label), int((tokens == SEP).nonzero()[0, 0])])
        found.append({document: sorted(one) for document, one in cut.items()})
    assert found[0] == found[2]
    assert sum(found[0][document] == found[1][document] for document in found[0]) < len(found[0]) / 2


def test_no_order_is_held_in_memory() -> None:
    """A million million documents: their order could not be."""

    class Endless(Held):
        tokens = 40 * 10**12

        def __len__(self) -> int:
            return 10**12

        def fetch(self, numbers: Any) -> Documents:
            return Documents(np.asarray(numbers), np.full(40 * len(numbers), 7), np.arange(2 * len(numbers) + 1) * 20, np.arange(len(numbers) + 1) * 2)

    stream = Stream(Endless([]), reading(), tokens=1024)
    found = stream.documents(7, stream.blocks // 2).numbers
    assert len(np.unique(found)) == len(found) > 1000
    assert 0 <= found.min() < 10**10
    assert 99 * 10**10 < found.max() < 10**12
    place, batch = next(stream.batches(Place(7, stream.blocks - 1)))
    assert place == Place(7, stream.blocks - 1, 1)
    assert batch.ids is not None


# ---- from any place on


@pytest.mark.parametrize(("kind", "unit"), [("next", "word"), ("order", "span"), ("none", "piece")])
def test_a_stream_goes_on_from_every_place(kind: str, unit: str) -> None:
    """Over the ends of blocks and of epochs; each time by a stream made anew."""

    def fresh() -> Stream:
        return Stream(corpus, reading(kind, unit), tokens=256)

    corpus = mixed(250)
    whole = []
    for place, batch in fresh().batches():
        whole.append((place, batch))
        if place.epoch == 2:
            break
    assert len(whole) > 250
    assert {place.epoch for place, _ in whole} == {0, 1, 2}
    assert max(place.block for place, _ in whole) > 0
    numbers = [(epoch, block) for epoch in range(2) for block in range(fresh().blocks)]
    expected_places = [Place(*number, batch) for number in numbers for batch in range(len(fresh().block(*number).batches))]
    assert [place for place, _ in whole[:-1]] == expected_places[1:], "none is left out, none comes twice"
    for number, (place, _) in enumerate(whole[:-1]):
        for (one, batch), (other, expected) in zip(fresh().batches(place), whole[number + 1 : number + 2], strict=False):
            assert one == other
            assert same(batch, expected)
    half = len(whole) // 2
    for (one, batch), (other, expected) in zip(fresh().batches(whole[half - 1][0]), whole[half:], strict=False):
        assert one == other
        assert same(batch, expected)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_any_number_of_ranks_see_the_same_batches(ranks: int) -> None:
    """One after the other in turn; and so they go on from the place of the last one."""
    corpus = mixed(150)
    stream = Stream(corpus, reading(), tokens=256)
    alone = list(itertools.islice(stream.batches(), 240))
    assert alone[-1][0].epoch > 0
    each = [Stream(corpus, reading(), tokens=256).batches(rank=rank, ranks=ranks) for rank in range(ranks)]
    together = [next(one) for _ in range(240 // ranks) for one in each]
    assert [place for place, _ in together] == [place for place, _ in alone]
    assert all(same(one, other) for (_, one), (_, other) in zip(together, alone, strict=True))
    for stop in range(ranks, 240 - ranks, 5 * ranks):
        again = [next(stream.batches(alone[stop - 1][0], rank=rank, ranks=ranks)) for rank in range(ranks)]
        assert all(same(one, other) for (_, one), (_, other) in zip(again, alone[stop : stop + ranks], strict=True))


def test_a_batch_is_made_without_the_others() -> None:
    one, other = (Stream(mixed(100), reading(), tokens=512).block(2, 0) for _ in range(2))
    numbers = range(len(one.batches))
    forth = [one.make(number) for number in numbers]
    back = [other.make(number) for number in reversed(numbers)][::-1]
    assert all(map(same, forth, back))


@pytest.mark.parametrize("unit", UNITS)
def test_a_mask_does_not_depend_on_the_batch(unit: str) -> None:
    """Of the same seed and epoch, other budgets pack otherwise, and each sequence is masked as before."""
    found = []
    for tokens in (128, 700):
        sequences = {}
        for batch in epoch(Stream(mixed(100), reading("order", unit), tokens=tokens)):
            shown = batch.layout.split(batch.inputs["tokens"])
            assert batch.ids is not None
            sequences |= {sample: one.tolist() for sample, one in zip(batch.ids.tolist(), shown, strict=True)}
        found.append(sequences)
    assert found[0] == found[1]
    assert any(MASK in tokens for tokens in found[0].values())


# ---- a batch


@pytest.mark.parametrize("kind", ["none", "next", "order"])
@pytest.mark.parametrize("tokens", [4096, 16_384])
def test_hardly_any_room_is_left(kind: str, tokens: int) -> None:
    corpus = mixed(6000)
    stream = Stream(corpus, reading(kind, longest=512), tokens=tokens)
    lengths = [int(batch.layout.lengths.sum()) for block in range(min(2, stream.blocks)) for batch in block_of(stream, block)]
    assert len(lengths) > 40
    assert max(lengths) <= tokens
    assert sum(lengths) / (tokens * len(lengths)) >= 0.98


def block_of(stream: Stream, number: int) -> list[Batch]:
    block = stream.block(0, number)
    return [block.make(batch) for batch in range(len(block.batches))]


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_sequences_never_see_each_other(kind: str, fixed: bool) -> None:
    """The layout's bounds lie where [CLS] stands, and a sequence ends with [SEP]: in what is shown, as neither is ever masked."""
    for batch in epoch(Stream(mixed(150), reading(kind), tokens=400, fixed=fixed)):
        tokens, positions = batch.inputs["tokens"], batch.inputs["positions"]
        assert batch.ids is not None
        bounds = batch.layout.bounds[: len(batch.ids) + 1].long()  # type: ignore[attr-defined]
        real = int(bounds[-1])
        assert torch.equal(bounds[:-1], torch.nonzero(tokens == CLS)[:, 0])
        assert (tokens[bounds[1:] - 1] == SEP).all()
        assert int((tokens == SEP).sum()) == len(batch.ids) * (1 if kind == "none" else 2)
        lengths = bounds.diff()
        assert lengths.max() <= 64
        assert positions[:real].tolist() == [place for length in lengths.tolist() for place in range(length)]
        if kind == "none":
            assert "segments" not in batch.inputs
        else:
            seps = (tokens[:real] == SEP).long()
            assert torch.equal(batch.inputs["segments"][:real], (seps.cumsum(0) - seps) % 2)
            assert torch.equal(batch.targets["next.labels"][: len(batch.ids)] != IGNORED, torch.ones(len(batch.ids), dtype=torch.bool))


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("kind", ["none", "next"])
def test_fixed_batches_have_one_shape(kind: str, unit: str) -> None:
    """What fills them is read by nobody: it is of no sequence's, nothing is asked of it, and nothing else changes."""
    tokens = 1024
    shapes = set()
    loose = epoch(Stream(mixed(300), reading(kind, unit), tokens=tokens))
    for batch, other in zip(epoch(Stream(mixed(300), reading(kind, unit), tokens=tokens, fixed=True)), loose, strict=True):
        shapes.add(tuple(len(one) for one in (*batch.inputs.values(), batch.targets["words.rows"], batch.targets["words.labels"])))
        real = len(other.inputs["tokens"])
        asked, expected = batch.targets["words.labels"] != IGNORED, other.targets["words.labels"] != IGNORED
        for name in ("words.rows", "words.labels"):
            assert torch.equal(batch.targets[name][asked], other.targets[name][expected])
        for name, one in batch.inputs.items():
            assert torch.equal(one[:real], other.inputs[name])
            assert not one[real:].any()
        lengths = batch.layout.lengths
        assert torch.equal(lengths[: len(other.layout.lengths)], other.layout.lengths)
        assert lengths.sum() == tokens
        assert lengths.min() > 0
        assert lengths.max() == other.layout.lengths.max()
        if kind == "next":
            assert len(batch.targets["next.labels"]) == len(lengths)
            assert (batch.targets["next.labels"][len(other.layout.lengths) :] == IGNORED).all()
    assert shapes == {(*[tokens] * (2 if kind == "none" else 3), *[reading(unit=unit).masking.most(tokens)] * 2)}


def test_an_evaluation_is_the_same_in_every_epoch() -> None:
    """The documents are shuffled anew, and each is cut and masked as before."""
    found = []
    for number in (0, 4):
        stream = Stream(mixed(100), Reading(Pairs("order", CLS, SEP, 64), Masking(PIECES), fixed=True), tokens=512, fixed=True)
        sequences = {}
        for batch in epoch(stream, number):
            assert batch.ids is not None
            sequences |= {sample: one.tolist() for sample, one in zip(batch.ids.tolist(), batch.layout.split(batch.inputs["tokens"]), strict=False)}
        found.append(sequences)
    assert found[0] == found[1]


# ---- several corpora


@pytest.mark.parametrize("weights", [(), (1, 1, 1), (8, 1, 1), (0.2, 0.3, 0.5)], ids=str)
def test_corpora_are_mixed_by_weight(weights: tuple[float, ...]) -> None:
    """Without weights, by their sizes."""
    sizes = (900, 500, 200)
    stream = Stream([Held([[20, 20]] * size) for size in sizes], reading("none"), tokens=400, weights=weights)
    shares = np.array(weights or sizes, float) / sum(weights or sizes)
    of = [np.searchsorted(stream.offsets, stream.documents(0, block).numbers, "right") - 1 for block in range(stream.blocks)]
    for block in of:
        assert np.abs(np.bincount(block, minlength=3) - shares * len(block)).max() <= 1
    for block in range(stream.blocks):  # and not one corpus after the other, nor one document
        sequences = stream.block(0, block).sequences
        owners = (sequences.samples >> np.uint64(32)).astype(np.int64)
        for half in np.array_split(np.searchsorted(stream.offsets, owners, "right") - 1, 2):
            deviation = (shares * (1 - shares) * len(half)) ** 0.5
            assert (np.abs(np.bincount(half, minlength=3) - shares * len(half)) < 5 * deviation).all()
    assert abs(sum(map(len, of)) - sum(sizes)) < len(of[0])


def test_a_batch_is_not_of_few_documents() -> None:
    """Of long documents, each many sequences: a batch of 16 sequences is of about as many of the 32 documents as chance would have it."""
    stream = Stream(Held([[20] * 40] * 32), reading("none"), tokens=16 * 64)
    batches = [batch for _, (_, batch) in zip(range(8), stream.batches(), strict=False)]
    of = [len(set((batch.ids >> 32).tolist())) for batch in batches if batch.ids is not None]
    assert min(of) >= 8


def test_each_corpus_passes_whole_before_it_comes_again() -> None:
    """Over the ends of blocks and epochs, and in another order every time."""
    sizes = (300, 40)
    stream = Stream([Held([[20, 20]] * size) for size in sizes], reading("none"), tokens=200, weights=(1, 1))
    found: list[list[int]] = [[], []]
    for number, block in itertools.product(range(3), range(stream.blocks)):
        for corpus, size in enumerate(sizes):
            numbers = stream.documents(number, block).numbers - stream.offsets[corpus]
            other = stream.offsets[1] if corpus == 0 else 10**9
            found[corpus] += sorted(numbers[(numbers >= 0) & (numbers < other)] % size)
    for numbers, size in zip(found, sizes, strict=True):
        times = Counter(numbers)
        assert set(times) == set(range(size))
        assert max(times.values()) - min(times.values()) <= 1
    assert min(Counter(found[1]).values()) > 5


def test_what_comes_again_in_an_epoch_is_masked_anew() -> None:
    """A small corpus of a large weight passes many times in an epoch: each time is numbered apart, else it were masked alike."""
    stream = Stream([Held([[20, 20]] * 400), Held([[20, 20]] * 10)], reading("none"), tokens=512, weights=(1, 1))
    shown: dict[int, set[tuple[int, ...]]] = {}
    samples: list[int] = []
    for batch in epoch(stream):
        assert batch.ids is not None
        samples += batch.ids.tolist()
        for sample, tokens in zip(batch.ids.tolist(), batch.layout.split(batch.inputs["tokens"]), strict=True):
            if sample >> 32 >= stream.offsets[1]:
                shown.setdefault(((sample >> 32) - int(stream.offsets[1])) % 10, set()).add((*tokens.tolist(),))
    assert len(set(samples)) == len(samples)
    assert sorted(shown) == list(range(10))
    assert min(map(len, shown.values())) > 15


def test_documents_of_several_corpora_are_as_they_were() -> None:
    parts = [mixed(80), mixed(50, seed=1)]
    stream = Stream(parts, reading("none"), tokens=512)
    found = stream.documents(0, 0)
    for i, number in enumerate(found.numbers.tolist()):
        corpus = int(number >= stream.offsets[1])
        one = parts[corpus].fetch([(number - int(stream.offsets[corpus])) % len(parts[corpus])])
        assert np.array_equal(found.tokens[found.bounds[i] : found.bounds[i + 1]], one.tokens)
        ends = found.sentences[found.documents[i] : found.documents[i + 1] + 1]
        assert np.array_equal(ends - ends[0], one.sentences)


# ---- what cannot be


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_vocabulary({piece: i for i, piece in enumerate([*SPECIAL, ".", *LETTERS, *(f"##{letter}" for letter in LETTERS)])})


def test_shards_are_streamed(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """From text to batches: what is shown where nothing is masked is the documents' own text."""
    texts = ["ab cde.\nf.\nghi jk lm.", "nop.\nqrs tuv w.", "x yz."]
    corpus = Corpus(corpora.shards(tmp_path, tokenizer, texts, validation=0.0))
    objective = Reading(Pairs("none", tokenizer.special("cls"), tokenizer.special("sep"), 64, 0.0), Masking(Pieces.of(tokenizer), mask=0.0, other=0.0))
    (batch,) = epoch(Stream(corpus, objective, tokens=128))
    assert {tokenizer.rust.decode(one.tolist()) for one in batch.layout.split(batch.inputs["tokens"])} == {text.replace("\n", " ") for text in texts}
    rows = batch.targets["words.rows"][batch.targets["words.labels"] != IGNORED]
    assert torch.equal(batch.inputs["tokens"][rows], batch.targets["words.labels"][: len(rows)])


def test_a_split_without_documents(tmp_path: Path, tokenizer: Tokenizer) -> None:
    home = corpora.shards(tmp_path, tokenizer, ["ab.\ncd.", "ef.\ngh."], validation=0.0)
    with pytest.raises(UserError, match=rf"^{home} holds no documents for this split; prepare with a larger --validation, or give other shards$"):
        Stream(Corpus(home, "validation"), reading(), tokens=128)
    with pytest.raises(UserError, match=r"^the stream holds no documents"):
        Stream([], reading(), tokens=128)


def test_shards_of_two_tokenizers(tmp_path: Path, tokenizer: Tokenizer) -> None:
    other = Tokenizer.from_vocabulary({piece: i for i, piece in enumerate([*SPECIAL, ".", *LETTERS[::-1], *(f"##{letter}" for letter in LETTERS)])})
    homes = [corpora.shards(tmp_path / name, one, ["ab.\ncd."], validation=0.0) for name, one in (("a", tokenizer), ("b", other), ("c", tokenizer))]
    assert len(epoch(Stream([Corpus(homes[0]), Corpus(homes[2])], reading("order"), tokens=128))) == 1
    with pytest.raises(UserError, match=r"^the shards were made with different tokenizers, whose numbers mean different pieces; prepare them with one$"):
        Stream([Corpus(home) for home in homes], reading(), tokens=128)


@pytest.mark.parametrize("weights", [(1,), (1, 2, 3), (1, 0), (1, -1), (1, float("nan"))], ids=str)
def test_weights_that_cannot_be(weights: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match=rf"^{len(weights)} weights for 2 corpora; give each corpus one, above 0$"):
        Stream([mixed(10), mixed(10)], reading(), tokens=128, weights=weights)


@pytest.mark.parametrize(("lengths", "kind"), [([[20]] * 50, "next"), ([[20]] * 50, "order"), ([[20] * 9], "next")])
def test_documents_without_pairs(lengths: list[list[int]], kind: str) -> None:
    with pytest.raises(UserError, match=r"no sequence can be cut from held: pairs need documents of two sentences or more, .*, or train without pairs"):
        next(Stream(Held(lengths), reading(kind), tokens=128).batches())


def test_a_block_without_pairs_is_passed_over() -> None:
    """Most documents here are single sentences, so many a block has none to pair; the others are read all the same."""
    lengths = [[20]] * 1600
    lengths[7] = lengths[1300] = [20, 20, 20]
    stream = Stream(Held(lengths), reading("order"), tokens=64)
    assert stream.blocks > 4
    owners = {int(sample) >> 32 for _, (place, batch) in zip(range(6), stream.batches(), strict=False) for sample in batch.ids.tolist()}
    assert owners == {7, 1300}


@pytest.mark.parametrize(
    ("several", "digest"),
    [
        (False, "87b44fcda48f3e3d9ca4cf73ca68c0ebb0859801f75f0bd994069d58298c464e"),
        (True, "6c19a64c11b4d5db02eb3a3320991cb5b39698aacc181f69273520ab81bd524c"),
    ],
)
def test_they_are_what_they_were(several: bool, digest: str) -> None:
    """A run that is resumed by a later version must see the same batches: change this only if you mean that it does not."""
    lengths = [[1 + (i * 7 + j * 3) % 23 for j in range(2 + i % 5)] for i in range(40)]
    parts = [Held(lengths[:25]), Held(lengths[25:])] if several else Held(lengths)
    stream = Stream(parts, reading(unit="span"), tokens=256, seed=11, weights=(1, 2) if several else ())
    _, batch = next(stream.batches(Place(1)))
    found = hashlib.sha256()
    for name, tensor in sorted(tensors(batch).items()):
        found.update(name.encode() + tensor.numpy().astype("<i8").tobytes())
    assert found.hexdigest() == digest
