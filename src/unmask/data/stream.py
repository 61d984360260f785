"""Batches by number: what is in each is computed from (seed, epoch, block, batch), and nothing is drawn or remembered.

A block is a run of documents of the shuffled order. The objective cuts its documents into sequences, packing shares those out
among batches, and both depend on nothing but the block's number: so any number of ranks and workers see the same batches, and a
stream goes on from its place, which is three numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch

from unmask.data.batch import Batch
from unmask.data.keys import key, permuted
from unmask.data.packing import packed
from unmask.data.shards import Corpus, Documents
from unmask.errors import UserError
from unmask.model.layout import Packed

Numbers = np.ndarray[Any, np.dtype[Any]]
BATCHES = 64  # of a block: of its last batch a part is empty, so many before it are full
IGNORED = -100  # a label that stands for none: torch's own number for labels that count nothing
FEWEST = 32  # documents of a block: what pairs a document with another one finds it there


@dataclass(frozen=True, order=True)
class Place:
    """How far a stream is: the next batch to come."""

    epoch: int = 0
    block: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Sequences:
    """What an objective makes of documents: of each sequence, the runs of tokens that it is made of."""

    samples: Numbers  # (n,) uint64: the number of each, the same in every epoch that cuts it so
    starts: Numbers  # (n, runs) among the documents' tokens; -1 - id: that piece alone
    counts: Numbers  # (n, runs) how many tokens, 0: none
    kinds: Numbers  # (runs,) the segment of each run
    labels: Mapping[str, Numbers] = field(default_factory=dict)  # (n,) each

    @property
    def lengths(self) -> Numbers:
        return self.counts.sum(1)


@dataclass(frozen=True)
class Rows:
    """The tokens of some sequences, end to end."""

    tokens: Numbers
    segments: Numbers
    positions: Numbers
    samples: Numbers  # the sequence's number, for each token
    given: Numbers  # false for what the objective put in: [CLS] and [SEP]
    lengths: Numbers  # of the sequences


class Objective(Protocol):
    """What a stream asks of an objective, or of several together."""

    def cut(self, documents: Documents, epoch: int) -> Sequences: ...

    def ask(self, rows: Rows, sequences: Sequences, epoch: int, share: float = 0.0) -> tuple[Numbers, Mapping[str, Numbers]]:
        """The tokens that the model is shown, and what it should answer; `share` is how much of the run has passed."""
        ...


class Part(Protocol):
    """A numbered block of a stream: its batches, none of which is made before it is asked for."""

    @property
    def stream(self) -> Numbered: ...

    @property
    def batches(self) -> Sequence[Any]: ...

    @property
    def lengths(self) -> Numbers:
        """Of all its sequences."""
        ...

    def tokens(self, number: int) -> int:
        """How many real ones a batch has."""
        ...

    def make(self, number: int, share: float = 0.0) -> Batch:
        """One batch, and nothing of the others, as it is when so much of the run has passed."""
        ...


class Numbered(Protocol):
    """What numbered batches come from."""

    @property
    def blocks(self) -> int: ...

    def passing(self) -> tuple[float, float]:
        """The tokens of a batch and of an epoch, on average."""
        ...

    def walk(self, place: Place = ...) -> Iterator[tuple[Place, Part, int]]:
        """Every batch from that place on, not yet made: the place after it, its block, and its number there."""
        ...


class Stream:
    """Batches of one corpus, or of several mixed by weight; an epoch is as many documents as they have together."""

    def __init__(
        self, corpora: Corpus | Sequence[Corpus], objective: Objective, *, tokens: int, weights: Sequence[float] = (), seed: int = 0, fixed: bool = False
    ) -> None:
        self.corpora = (corpora,) if isinstance(corpora, Corpus) else tuple(corpora)
        self.objective, self.budget, self.seed, self.fixed = objective, tokens, seed, fixed
        sizes = np.array([len(corpus) for corpus in self.corpora])
        if not len(sizes) or not sizes.all():
            empty = [str(corpus.place) for corpus in self.corpora if not len(corpus)]
            raise UserError(
                f"{empty[0] if empty else 'the stream'} holds no documents for this split; prepare with a larger --validation, or give other shards"
            )
        if len({corpus.index["tokenizer"] for corpus in self.corpora}) > 1:
            raise UserError("the shards were made with different tokenizers, whose numbers mean different pieces; prepare them with one")
        shares = np.asarray(weights if len(weights) else sizes, float)
        if len(shares) != len(sizes) or not (shares > 0).all():
            raise UserError(f"{len(weights)} weights for {len(sizes)} corpora; give each corpus one, above 0")
        shares = shares / shares.sum()
        mean = float((shares * [corpus.tokens / len(corpus) for corpus in self.corpora]).sum())
        wanted = min(int(sizes.sum()), max(FEWEST, round(BATCHES * tokens / max(mean, 1.0))))
        self.each = np.maximum(1, np.round(shares * wanted).astype(int))  # documents of each corpus in a block
        self.blocks = max(1, round(int(sizes.sum()) / int(self.each.sum())))
        drawn = self.each * self.blocks if len(sizes) > 1 else sizes
        self.offsets = np.cumsum([0, *(drawn + 2 * sizes)[:-1]])  # a corpus that passes several times in an epoch has numbers for each time

    def documents(self, epoch: int, block: int) -> Documents:
        """Those of one block; of a single corpus, all blocks have as many, or one more. Each corpus is shuffled anew whenever all of it has passed."""
        found = []
        for number, (corpus, each) in enumerate(zip(self.corpora, self.each.tolist(), strict=True)):
            size = len(corpus)
            first = epoch * self.blocks * each if len(self.corpora) > 1 else epoch * size
            parts = (block * each, (block + 1) * each) if len(self.corpora) > 1 else (block * size // self.blocks, (block + 1) * size // self.blocks)
            places = first + np.arange(*parts)
            passes = places // size
            numbers = np.concatenate([permuted(places[passes == n] % size, size, key(self.seed, "order", number, int(n))) for n in np.unique(passes)])
            one = corpus.fetch(numbers)
            found.append(replace(one, numbers=numbers + self.offsets[number] + (passes - first // size) * size))
        return found[0] if len(found) == 1 else _together(found)

    def block(self, epoch: int, block: int) -> Block:
        documents = self.documents(epoch, block)
        sequences = self.objective.cut(documents, epoch)
        count = len(sequences.samples)  # those of one document lie together, and a batch should not be of two or three documents
        sequences = _some(sequences, permuted(np.arange(count), count, key(self.seed, "sequences", epoch, block)))
        longest = int(sequences.lengths.max(initial=0))
        if longest > self.budget:
            raise UserError(f"a sequence of {longest} tokens does not fit into a batch of {self.budget}; ask for larger batches or shorter sequences")
        return Block(self, epoch, documents, sequences, packed(sequences.lengths.tolist(), self.budget))

    def passing(self) -> tuple[float, float]:
        """As the first block tells."""
        block = self.block(0, 0)
        read = float(block.lengths.sum())
        shares = [1.0] if len(self.corpora) == 1 else [each * self.blocks / len(one) for each, one in zip(self.each, self.corpora, strict=True)]
        text = sum(share * one.tokens for share, one in zip(shares, self.corpora, strict=True))
        return read / len(block.batches), text * read / len(block.documents.tokens)

    def walk(self, place: Place = Place()) -> Iterator[tuple[Place, Block, int]]:
        """Every batch from that place on, not yet made: the place after it, its block, and its number there."""
        empty = 0  # blocks in a row that gave nothing
        while True:
            block = self.block(place.epoch, place.block)
            empty = 0 if block.batches else empty + 1
            if empty > self.blocks:
                raise UserError(
                    f"no sequence can be cut from {', '.join(str(corpus.place) for corpus in self.corpora)}: pairs need documents of two sentences or more, "
                    "and next sentence a second document; prepare the text with another --layout, give more, or train without pairs"
                )
            onward = Place(place.epoch, place.block + 1) if place.block + 1 < self.blocks else Place(place.epoch + 1)
            for number in range(place.batch, len(block.batches)):
                yield Place(place.epoch, place.block, number + 1) if number + 1 < len(block.batches) else onward, block, number
            place = onward

    def batches(self, place: Place = Place(), *, rank: int = 0, ranks: int = 1) -> Iterator[tuple[Place, Batch]]:
        """Batches without end, each with the place after it. Of every `ranks` batches in a row, a rank is given one."""
        for count, (after, block, number) in enumerate(self.walk(place)):  # a stream goes on at a place that all ranks know, so counting begins there
            if count % ranks == rank:
                yield after, block.make(number)


@dataclass(frozen=True)
class Block:
    stream: Stream
    epoch: int
    documents: Documents
    sequences: Sequences
    batches: list[list[int]]

    @property
    def lengths(self) -> Numbers:
        """Of all its sequences."""
        return self.sequences.lengths

    def tokens(self, number: int) -> int:
        """How many real ones a batch has."""
        return int(self.sequences.lengths[self.batches[number]].sum())

    def make(self, number: int, share: float = 0.0) -> Batch:
        """One batch, and nothing of the others, as it is when so much of the run has passed."""
        chosen = np.array(self.batches[number])
        rows = gathered(self.documents, self.sequences, chosen)
        sequences, lengths = _some(self.sequences, chosen), rows.lengths.tolist()
        if self.stream.fixed:
            rows, sequences, lengths = _filled(rows, sequences, self.stream.budget)
        tokens, targets = self.stream.objective.ask(rows, sequences, self.epoch, share)
        inputs = {"tokens": tokens, "positions": rows.positions}
        if len(np.unique(self.sequences.kinds)) > 1:
            inputs["segments"] = rows.segments
        return Batch(
            {name: torch.from_numpy(np.ascontiguousarray(one, np.int64)) for name, one in inputs.items()},
            Packed.of(lengths),
            {name: torch.from_numpy(one) for name, one in targets.items()},
            torch.from_numpy(self.sequences.samples[chosen].astype(np.int64)),
        )


def gathered(documents: Documents, sequences: Sequences, chosen: Numbers) -> Rows:
    """The tokens of these sequences: every run's addresses, one after the other, looked up at once."""
    starts, counts = sequences.starts[chosen], sequences.counts[chosen]
    flat = counts.ravel()
    total = int(flat.sum())
    ends = np.cumsum(flat)
    addresses = np.arange(total) + np.repeat(starts.ravel() - (ends - flat), flat)
    tokens = np.take(documents.tokens, addresses, mode="clip").astype(np.int64) if len(documents.tokens) else np.zeros(total, np.int64)
    alone = np.flatnonzero((starts.ravel() < 0) & (flat > 0))  # pieces that stand in no document: a run of one each
    tokens[ends[alone] - 1] = -1 - starts.ravel()[alone]
    given = np.ones(total, bool)
    given[ends[alone] - 1] = False
    lengths = counts.sum(1)
    positions = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    segments = np.repeat(np.broadcast_to(sequences.kinds, counts.shape).ravel(), flat)
    return Rows(tokens, segments, positions, np.repeat(sequences.samples[chosen], lengths), given, lengths)


def _some(sequences: Sequences, chosen: Numbers) -> Sequences:
    labels = {name: one[chosen] for name, one in sequences.labels.items()}
    return Sequences(sequences.samples[chosen], sequences.starts[chosen], sequences.counts[chosen], sequences.kinds, labels)


def _filled(rows: Rows, sequences: Sequences, budget: int) -> tuple[Rows, Sequences, list[int]]:
    """The same with as many tokens as the budget, in sequences that nobody reads, none longer than the longest; and the lengths of all."""
    real = rows.lengths.tolist()
    tail, longest = budget - sum(real), max(real)
    lengths = real + [min(longest, tail - done) for done in range(0, tail, longest)]
    names = ("tokens", "segments", "positions", "samples", "given")
    labels = {name: np.pad(one, (0, len(lengths) - len(real)), constant_values=IGNORED) for name, one in sequences.labels.items()}
    return replace(rows, **{name: np.pad(getattr(rows, name), (0, tail)) for name in names}), replace(sequences, labels=labels), lengths


def _together(parts: Sequence[Documents]) -> Documents:
    """Documents of several corpora, one corpus after the other; their sequences are shuffled."""
    lengths = np.concatenate([np.diff(part.sentences) for part in parts])
    counts = np.concatenate([np.diff(part.documents) for part in parts])
    tokens = np.concatenate([part.tokens.astype(np.uint32) for part in parts])
    return Documents(np.concatenate([part.numbers for part in parts]), tokens, np.cumsum([0, *lengths]), np.cumsum([0, *counts]))
