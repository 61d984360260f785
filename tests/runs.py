"""Runs small enough to learn in a second, over shards made for the session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import corpora
from unmask.model import families
from unmask.model.embed import TextConfig
from unmask.model.encoder import EncoderConfig
from unmask.model.model import ModelConfig
from unmask.objectives.mlm import MLM
from unmask.objectives.nsp import NSP
from unmask.tokenizer.learn import learn
from unmask.train.optim import Optimizer
from unmask.train.run import Run, Shards
from unmask.train.schedule import Schedule

TEXTS = corpora.documents(120, seed=3, longest=20)


def made(place: Path) -> Path:
    """Shards of a text of Python's own words, with a vocabulary of its own."""
    tokenizer = learn(TEXTS, 400, coverage=0.99).tokenizer
    return corpora.shards(place, tokenizer, TEXTS, validation=0.15)


def shape(dropout: float = 0.0) -> ModelConfig:
    encoder = EncoderConfig(32, 2, heads=2, hidden=64, dropout=dropout, attention_dropout=dropout)
    return replace(families.shape("bert.tiny"), embed=TextConfig(400, positions=64, dropout=dropout), encoder=encoder, head_dropout=0.0)


def small(shards: Path, **changes: Any) -> Run:
    """Masked words and next sentence, some steps of two micro-batches."""
    data = Shards(path=(str(shards),), tokens=512, step=((0.0, 2),), longest=((0.0, 48),))
    run = Run(
        shape(),
        (MLM(), NSP()),
        data,
        Optimizer(lr=3e-3),
        Schedule("linear", warmup="10%"),
        stop="12",
        evaluate="50%",
        evaluate_tokens=2_000,
        save="4",
        compile="no",
    )
    return replace(run, **changes)
