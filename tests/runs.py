"""Runs small enough to learn in a second, over shards made for the session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import corpora
from unmask.model import families
from unmask.model.embed import TextConfig
from unmask.model.encoder import EncoderConfig
from unmask.model.families.bilm import Sides
from unmask.model.model import ModelConfig
from unmask.objectives.base import Objective
from unmask.objectives.bilm import BiLM
from unmask.objectives.causal import Causal
from unmask.objectives.mlm import MLM
from unmask.objectives.nsp import NSP
from unmask.objectives.rtd import RTD
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


def electra(dropout: float = 0.0) -> ModelConfig:
    config = shape(dropout)
    return replace(config, family="electra", embed=replace(config.embed, width=24), pooler=False)


def sides(dropout: float = 0.0) -> ModelConfig:
    config = families.shape("bilm.small")
    words = replace(config.embed, vocabulary=400, positions=64, dropout=dropout)  # type: ignore[type-var]
    return replace(config, embed=words, encoder=Sides(32, 2, 48, dropout), head_dropout=0.0)


LEARNED: dict[str, tuple[tuple[Objective, ...], Callable[[float], ModelConfig]]] = {  # every objective, with those it needs and a shape that has its heads
    "mlm": ((MLM(),), shape),
    "nsp": ((MLM(), NSP()), shape),
    "causal": ((Causal(),), shape),
    "rtd": ((RTD(generator=0.5),), electra),
    "bilm": ((BiLM(),), sides),
}


def learning(name: str, shards: Path, dropout: float = 0.0, **changes: Any) -> Run:
    objectives, model = LEARNED[name]
    return small(shards, objective=objectives, model=model(dropout), **changes)
