"""Next sentence: does the second text follow the first (Devlin et al. 2018, section 3.1); or are the two in order (Lan et al. 2019).

Documents are cut into pairs of whole sentences. A pair holds at least two, the first text some of them and the second the rest; or, by
one half of the chances, the second is from another document (`next`), or the two change places (`order`). What the other half
would have read as a second text is read as the next first one, so that nothing of a document is lost but a last sentence left alone
and what is too long for its half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.data.batch import Batch
from unmask.data.keys import below, hashed, key, uniform
from unmask.data.shards import Documents
from unmask.data.stream import IGNORED, Sequences
from unmask.errors import UserError
from unmask.objectives.base import Frame, Learner, Objective

Numbers = np.ndarray[Any, np.dtype[Any]]
KINDS = ("next", "order", "none")


@dataclass(frozen=True)
class NSP(Objective):
    """`next`: is the second text the one that follows; `order`: are the two in order, as ALBERT asks."""

    kind: Literal["next", "order"] = "next"

    terms: ClassVar[tuple[str, ...]] = ("next",)

    def heads(self, vocabulary: int) -> dict[str, int]:
        return {"next": 2}

    def called(self) -> dict[str, str]:
        return {"next": "next sentence" if self.kind == "next" else "the order of sentences"}

    def cuts(self, frame: Frame) -> Pairs:
        return Pairs(self.kind, frame.pieces.cls, frame.pieces.sep, frame.longest, frame.short, frame.seed)

    def losses(self, learner: Learner, states: Tensor, batch: Batch) -> dict[str, Tensor]:
        labels = batch.targets["next.labels"]
        logits = learner.model.read("next", states, batch.layout)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        loss = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        return {"next": loss, "next.right": (logits.detach().argmax(-1) == labels).sum()}


@dataclass(frozen=True)
class Pairs:
    """How sequences of at most `longest` tokens are cut; `short` of them aim at a length of any size, as BERT's did."""

    kind: str
    cls: int
    sep: int
    longest: int = 512
    short: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"there are no pairs {self.kind!r}; there are {', '.join(KINDS)}")
        if not 0 <= self.short <= 1:
            raise UserError(f"a share of {self.short} short sequences is none; give a number from 0 to 1")
        if self.longest < 8:
            raise UserError(f"sequences of {self.longest} tokens hold no pair; ask for 8 or more")

    def cut(self, documents: Documents, epoch: int) -> Sequences:
        """One step after another through all documents at once: in each, every document that has not ended gives a sequence."""
        if not self._pairable(documents):
            none = np.zeros(0, np.int64)
            return self._sequences(documents, none, none, none, none, none, none)
        purpose = key(self.seed, "pairs", epoch)
        found: list[tuple[Numbers, ...]] = []
        at, ends = documents.bounds[:-1].copy(), documents.bounds[1:]
        live = np.flatnonzero(at < ends)
        step = self._one if self.kind == "none" else self._two
        while len(live):
            bits = hashed(purpose, documents.numbers[live], at[live] - documents.bounds[live])
            onward, made = step(documents, live, at[live], bits)
            found.append(made)
            at[live] = onward
            live = live[onward < ends[live]]
        owner, start, first, other, second, label = (np.concatenate(part) for part in zip(*found, strict=True))
        order = np.lexsort((start, owner))  # in the order of the documents, which is shuffled
        return self._sequences(documents, *(part[order] for part in (owner, start, first, other, second, label)))

    def _pairable(self, documents: Documents) -> bool:
        """Whether a document here has two sentences, and there is another one to take a wrong sentence from."""
        return self.kind == "none" or (bool((np.diff(documents.documents) > 1).any()) and (self.kind == "order" or len(documents) > 1))

    def _target(self, bits: Numbers, room: int) -> Numbers:
        """How long a sequence should come to be, without its special pieces."""
        short = uniform(hashed(bits, np.uint64(1))) < self.short
        return np.where(short, 2 + below(hashed(bits, np.uint64(2)), room - 1), room)

    def _one(self, documents: Documents, live: Numbers, at: Numbers, bits: Numbers) -> tuple[Numbers, tuple[Numbers, ...]]:
        """A single text: sentences while they fit, or the beginning of one that does not."""
        last = documents.bounds[live + 1]
        stop = _whole(documents.sentences, at, np.minimum(at + self._target(bits, self.longest - 2), last))
        none = np.zeros(len(live), np.int64)
        return stop, (live, at, stop - at, none, none, none)

    def _two(self, documents: Documents, live: Numbers, at: Numbers, bits: Numbers) -> tuple[Numbers, tuple[Numbers, ...]]:
        bounds, room = documents.sentences, self.longest - 3
        last = documents.bounds[live + 1]
        target = np.maximum(self._target(bits, room), 2)
        # From where it stands: the end of this sentence, and of the last one that fits; two at least.
        here = np.searchsorted(bounds, at, "right")
        final = documents.documents[live + 1]
        stop = np.minimum(np.maximum(np.searchsorted(bounds, np.minimum(at + target, last), "right") - 1, here + 1), final)
        pairable = here < final  # a document's last sentence alone is half a pair
        cut = np.minimum(here + below(hashed(bits, np.uint64(3)), np.maximum(stop - here, 1)), final - 1)
        middle, end = bounds[np.minimum(cut, len(bounds) - 1)], bounds[stop]
        label = (uniform(hashed(bits, np.uint64(4))) < 0.5).astype(np.int64)
        first, second = middle - at, end - middle
        other = middle
        if self.kind == "next":
            wrong, wide = self._elsewhere(documents, live, hashed(bits, np.uint64(5)), np.maximum(target - first, 1))
            other, second = np.where(label == 1, wrong, other), np.where(label == 1, wide, second)
        first, second, front = _shortened(first, second, room, hashed(bits, np.uint64(6)))
        start = at + np.where(front, (middle - at) - first, 0)
        onward = np.where(label == 1, middle, end) if self.kind == "next" else end
        onward = np.where(pairable, onward, last)
        made = (live, start, first, other, second, label)
        return onward, tuple(part[pairable] for part in made)

    def _elsewhere(self, documents: Documents, live: Numbers, bits: Numbers, room: Numbers) -> tuple[Numbers, Numbers]:
        """Sentences of another document, from any one on while they fit; one at least, as of the text that does follow, else its length told which it is."""
        other = (live + 1 + below(hashed(bits, np.uint64(1)), len(documents) - 1)) % len(documents)
        low, high = documents.documents[other], documents.documents[other + 1]
        one = low + below(hashed(bits, np.uint64(2)), high - low)
        start = documents.sentences[one]
        last = np.searchsorted(documents.sentences, np.minimum(start + room, documents.bounds[other + 1]), "right") - 1
        return start, documents.sentences[np.maximum(last, one + 1)] - start

    def _sequences(self, documents: Documents, owner: Numbers, start: Numbers, first: Numbers, other: Numbers, second: Numbers, label: Numbers) -> Sequences:
        samples = documents.numbers[owner].astype(np.uint64) << np.uint64(32) | (start - documents.bounds[owner]).astype(np.uint64)
        one = np.ones(len(owner), np.int64)
        cls, sep = np.full(len(owner), -1 - self.cls), np.full(len(owner), -1 - self.sep)
        if self.kind == "none":
            return Sequences(samples, np.stack([cls, start, sep], 1), np.stack([one, first, one], 1), np.zeros(3, np.int64))
        if self.kind == "order":
            swap = label == 1
            start, other = np.where(swap, other, start), np.where(swap, start, other)
            first, second = np.where(swap, second, first), np.where(swap, first, second)
        starts, counts = np.stack([cls, start, sep, other, sep], 1), np.stack([one, first, one, second, one], 1)
        return Sequences(samples, starts, counts, np.array([0, 0, 0, 1, 1]), {"next": label})


def _whole(bounds: Numbers, start: Numbers, limit: Numbers) -> Numbers:
    """The end of the last sentence within the limit; the limit itself where not even one ends before it."""
    end = bounds[np.searchsorted(bounds, limit, "right") - 1]
    return np.where(end > start, end, limit)


def _shortened(first: Numbers, second: Numbers, room: int, bits: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Two texts in the room of a sequence: the longer gives way until both are of a length. `front`: the first one gives way at its front.

    BERT throws tokens away one by one, at the front or at the back by chance; here one chance is for all of them.
    """
    half = room // 2
    longer = np.where(first <= half, first, np.where(second <= room - half, room - second, room - half))
    kept = np.where(first + second <= room, first, longer)
    return kept, np.minimum(second, room - kept), (uniform(bits) < 0.5) & (kept < first)
