"""SpanBERT (Joshi et al. 2019): spans of whole words masked, 3.8 words on average and ten at the most, single texts that fill the length, no next sentence.

Rates, decay and dropout are the paper's, as is a step of 131,072 tokens of length 512; it made 2.4 million of them after a warm-up of 10,000.
Two things are not the paper's: of a span each piece is masked, replaced or kept by its own chance, where the paper decides for the whole span; and its
second objective, to tell what stands in a span by its two neighbours alone, is left out.
"""

from __future__ import annotations

from dataclasses import replace

from unmask.model import families
from unmask.objectives.mlm import MLM
from unmask.train.optim import Optimizer
from unmask.train.run import Run, Shards
from unmask.train.schedule import Schedule


def base() -> Run:
    """12 layers, width 768: 110 million parameters; BERT-base in all but what is asked of it."""
    return Run(
        model=families.shape("bert.base"),
        objective=(MLM(rate=0.15, unit="span"),),
        data=Shards(tokens=16_384, step=((0.0, 8),), longest=((0.0, 512),), short=0.0),
        optimizer=Optimizer(lr=1e-4, epsilon=1e-8, weight_decay=0.1),
        schedule=Schedule("linear", warmup="1%"),
        stop="100000",
        layout="padded",  # dropout in attention runs there
    )


def tiny() -> Run:
    """2 layers, width 128: the same in seconds on a CPU, at a rate that so small a model bears."""
    run = base()
    data = Shards(tokens=2_048, step=((0.0, 1),), longest=((0.0, 128),), short=0.0)
    return replace(run, model=families.shape("bert.tiny"), data=data, optimizer=replace(run.optimizer, lr=5e-4), stop="500")
