"""Ten million words, as the BabyLM challenge has it: what a model can learn from about as many words as a child hears in a year or two.

unmask tokenizer train.txt --cased --vocab-size 8192 --out tok
unmask prepare train.txt --tokenizer tok --validation 0.01 --out shards
unmask train babylm.passes --data shards --out runs/baby
unmask study pairs runs/baby blimp.jsonl
"""

from __future__ import annotations

from dataclasses import replace

from unmask.model import families
from unmask.model.encoder import EncoderConfig
from unmask.objectives.mlm import MLM
from unmask.train.optim import Optimizer
from unmask.train.run import Run, Shards
from unmask.train.schedule import Schedule


def passes() -> Run:
    """At most ten passes over the text: 99 million parameters, some 7 minutes on an H200 that two other runs share; 76.8 in BLiMP (67 tasks), seed 0."""
    return Run(
        model=families.shape("gated.base"),
        objective=(MLM(rate=0.3, until=0.15),),
        data=Shards(tokens=32_768, longest=((0.0, 128), (0.7, 256))),
        optimizer=Optimizer("muon", lr=0.015, rest=0.004, betas=(0.9, 0.98), epsilon=1e-8, weight_decay=0.05, clip=1.0),
        schedule=Schedule("wsd", warmup="1%", decay="50%"),
        stop="10ep",
        evaluate="25%",
    )


def minutes() -> Run:
    """Any number of passes, in nine minutes."""
    return replace(passes(), stop="9min")


def tiny() -> Run:
    """2 layers, width 64: the same in seconds on a CPU."""
    run = passes()
    assert isinstance(run.model.encoder, EncoderConfig)
    encoder = replace(run.model.encoder, depth=2, width=64, heads=2, hidden=128)
    return replace(run, model=replace(run.model, encoder=encoder), data=Shards(tokens=2_048, longest=((0.0, 64), (0.7, 128))), stop="300")
