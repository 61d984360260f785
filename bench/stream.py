"""Masked and packed batches from shards, against transformers' DataCollatorForLanguageModeling over rows that lie ready in memory.

    python bench/stream.py --shards shards
    python bench/stream.py                     # Python's own documentation, prepared for it

Both make batches of 65,536 tokens for sequences of 512; contenders take turns in one process, a figure is the median. The peer is given
its rows cut and in memory, and only collates and masks; ours also reads them from the files, pairs sentences, shuffles and packs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pydoc_data.topics
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertTokenizerFast, DataCollatorForLanguageModeling

from unmask.data.corpus import sources
from unmask.data.prepare import prepare
from unmask.data.shards import Corpus
from unmask.data.stream import Place, Stream
from unmask.objectives.base import Reading
from unmask.objectives.mlm import Masking, Pieces
from unmask.objectives.nsp import Pairs
from unmask.study.demo import real_model
from unmask.tokenizer import Tokenizer

LONGEST, TOKENS = 512, 65_536


def ours(corpus: Corpus, tokenizer: Tokenizer, pairs: str, unit: str) -> Iterator[int]:
    cut = Pairs(pairs, tokenizer.special("cls"), tokenizer.special("sep"), LONGEST)
    reading = Reading(cut, Masking(Pieces.of(tokenizer), unit=unit))
    for _, batch in Stream(corpus, reading, tokens=TOKENS).batches(Place()):
        yield len(batch.inputs["tokens"])


def peer(corpus: Corpus, folder: Path, listed: bool) -> Iterator[int]:
    """`listed`: rows as `datasets` hands them out, lists of numbers with their masks; else tensors, which it is fastest with."""
    tokenizer = BertTokenizerFast.from_pretrained(folder)
    tokens = corpus.fetch(np.arange(len(corpus))).tokens.astype(np.int64)
    cls, sep = np.full((1, 1), tokenizer.cls_token_id), np.full((1, 1), tokenizer.sep_token_id)
    count = len(tokens) // (LONGEST - 2)
    rows = np.hstack([cls.repeat(count, 0), tokens[: count * (LONGEST - 2)].reshape(count, -1), sep.repeat(count, 0)])
    examples: list[Any] = list(torch.from_numpy(rows))
    if listed:
        examples = [{"input_ids": row.tolist(), "attention_mask": [1] * LONGEST} for row in rows[:4096]]
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    for start in itertools.cycle(range(0, max(1, len(examples) - TOKENS // LONGEST + 1), TOKENS // LONGEST)):
        yield collate(examples[start : start + TOKENS // LONGEST])["input_ids"].numel()


def speed(batches: Iterator[int], seconds: float) -> float:
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        count += next(batches)
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, help="what `unmask prepare` wrote")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn")
    parser.add_argument("--threads", type=int, default=2, help="torch's")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    with tempfile.TemporaryDirectory() as place:
        shards = asked.shards or made(Path(place))
        corpus, tokenizer = Corpus(shards), Tokenizer.load(shards / "tokenizer")
        contenders: dict[str, Iterator[int]] = {
            "unmask, single texts": ours(corpus, tokenizer, "none", "piece"),
            "unmask, next sentence": ours(corpus, tokenizer, "next", "piece"),
            "unmask, whole words": ours(corpus, tokenizer, "none", "word"),
            "transformers' collator": peer(corpus, shards / "tokenizer", True),
            "the same, given tensors": peer(corpus, shards / "tokenizer", False),
        }
        runs: dict[str, list[float]] = {name: [] for name in contenders}
        for batches in contenders.values():
            next(batches)
        for _, (name, batches) in itertools.product(range(asked.rounds), contenders.items()):
            runs[name].append(speed(batches, asked.seconds))
    figures: dict[str, Any] = {name: {"tokens_per_second": statistics.median(found), "spread": [min(found), max(found)]} for name, found in runs.items()}
    reference = figures["transformers' collator"]["tokens_per_second"]
    for name, one in figures.items():
        now, low, high = (value / 1e6 for value in (one["tokens_per_second"], *one["spread"]))
        print(f"{name:24s}{now:7.2f} million tokens/s ({low:.2f} to {high:.2f}), {1e6 * now / reference:6.1f} x")
    if asked.out:
        asked.out.write_text(json.dumps(figures, indent=2) + "\n")


def made(place: Path) -> Path:
    text = place / "text.txt"
    text.write_text("\n\n".join(pydoc_data.topics.topics.values()) * 5, encoding="utf-8")
    prepare(sources([text], layout="blank"), Tokenizer.load(real_model()), place / "shards", engine="here")
    return place / "shards"


if __name__ == "__main__":
    main()
