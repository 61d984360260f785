"""What came after BERT, for the most that a given time can teach: pre-norm, rotary positions, gated GELU, no biases, windows of near tokens
(ModernBERT's shape, so that transformers loads it), masked words alone at a rate that falls from 30% to 15%, short sequences first,
Muon for the matrices, and a rate that stays up and falls at the end.
"""

from __future__ import annotations

from dataclasses import replace

from unmask.model import families
from unmask.model.encoder import EncoderConfig
from unmask.objectives.mlm import MLM
from unmask.train.optim import Optimizer
from unmask.train.run import Run, Shards
from unmask.train.schedule import Schedule


def small() -> Run:
    """12 layers, width 384, 6 heads: 25 million parameters with a vocabulary of 8,192. Set --stop to the time you have, such as 9min."""
    return _modern(12, 384, 6, 1024)


def base() -> Run:
    """22 layers, width 768, 12 heads, as ModernBERT-base: 149 million parameters with its vocabulary of 50,368."""
    return _modern(22, 768, 12, 1152)


def tiny() -> Run:
    """4 layers, width 128: the same in seconds on a CPU."""
    run = _modern(4, 128, 2, 384)
    return replace(run, data=Shards(tokens=2_048, step=((0.0, 1),), longest=((0.0, 64), (0.7, 128))), stop="500")


def _modern(depth: int, width: int, heads: int, hidden: int) -> Run:
    shape = families.shape("modernbert.base")
    assert isinstance(shape.encoder, EncoderConfig)
    return Run(
        model=replace(shape, encoder=replace(shape.encoder, depth=depth, width=width, heads=heads, hidden=hidden)),
        objective=(MLM(rate=0.3, until=0.15),),
        data=Shards(tokens=16_384, step=((0.0, 8),), longest=((0.0, 128), (0.7, 256), (0.9, 512))),
        optimizer=Optimizer("muon", lr=0.02, rest=0.004, betas=(0.9, 0.98), epsilon=1e-8, weight_decay=0.0, clip=1.0),
        schedule=Schedule("wsd", warmup="1%", decay="40%"),
        stop="10000",
    )
