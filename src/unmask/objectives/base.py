"""What is read and what is asked, together: the pairs that a corpus is cut into, and the words that are masked in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.data.shards import Corpus, Documents
from unmask.data.stream import Rows, Sequences, Stream
from unmask.objectives.mlm import IGNORED, Masking, Pieces
from unmask.objectives.nsp import Pairs
from unmask.tokenizer import Tokenizer

Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Reading:
    """`fixed`: the same pairs and masks in every epoch, as for evaluation."""

    pairs: Pairs
    masking: Masking
    fixed: bool = False

    def cut(self, documents: Documents, epoch: int) -> Sequences:
        return self.pairs.cut(documents, 0 if self.fixed else epoch)

    def ask(self, rows: Rows, sequences: Sequences, epoch: int) -> tuple[Numbers, Mapping[str, Numbers]]:
        shown, targets = self.masking.ask(rows, 0 if self.fixed else epoch)
        return shown, {**targets, **{f"{name}.labels": labels for name, labels in sequences.labels.items()}}


def statistics(corpus: Corpus, tokenizer: Tokenizer, longest: int = 512, enough: int = 1_000_000) -> dict[str, float]:
    """What pairs and masks come to be on the first so many tokens of a corpus, counted from the batches themselves."""
    masking = Masking(Pieces.of(tokenizer))
    pairable = int(corpus.index["sentences"][corpus.part]) > len(corpus) > 1
    pairs = Pairs("next" if pairable else "none", tokenizer.special("cls"), tokenizer.special("sep"), longest)
    stream = Stream(corpus, Reading(pairs, masking), tokens=65_536)
    counts = dict.fromkeys(("batches", "tokens", "sequences", "chosen", "mask", "kept", "follow"), 0)
    for _, batch in stream.batches():
        shown, rows, labels = batch.inputs["tokens"].numpy(), batch.targets["words.rows"].numpy(), batch.targets["words.labels"].numpy()
        rows, labels = rows[labels != IGNORED], labels[labels != IGNORED]
        counts["batches"] += 1
        counts["tokens"] += len(shown)
        counts["sequences"] += len(batch.layout.lengths)
        counts["chosen"] += len(rows)
        counts["mask"] += int((shown[rows] == masking.pieces.mask).sum())
        counts["kept"] += int((shown[rows] == labels).sum())
        counts["follow"] += int((batch.targets["next.labels"] == 0).sum()) if pairable else 0
        if counts["tokens"] >= enough:
            break
    chosen, sequences = max(counts["chosen"], 1), counts["sequences"]
    found = {
        "tokens": counts["tokens"],
        "tokens a sequence": counts["tokens"] / sequences,
        "of a batch used": counts["tokens"] / (counts["batches"] * 65_536),
        "pieces chosen": counts["chosen"] / (counts["tokens"] - (3 if pairable else 2) * sequences),
        "of those read [MASK]": counts["mask"] / chosen,
        "of those read another": 1 - (counts["mask"] + counts["kept"]) / chosen,
        "of those read themselves": counts["kept"] / chosen,
    }
    return found | ({"pairs that follow": counts["follow"] / sequences} if pairable else {})
