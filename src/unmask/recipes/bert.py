"""BERT as published (Devlin et al. 2018): masked words and next sentence, 15% at 80/10/10, dropout 0.1, AdamW, a linear fall after warm-up.

The paper trained on 3.3 billion words, 256 sequences a step for a million steps, 90% of them of length 128 and the rest of 512. A step here is
made of micro-batches of 16,384 tokens; eight are the paper's 131,072. Rates and dropout are the paper's; the number of steps
is for you to set (`--steps`), as it depends on the text.
"""

from __future__ import annotations

from dataclasses import replace

from unmask.model import families
from unmask.model.encoder import EncoderConfig
from unmask.objectives.mlm import MLM
from unmask.objectives.nsp import NSP
from unmask.train.optim import Optimizer
from unmask.train.run import Run, Shards
from unmask.train.schedule import Schedule


def _published(size: str, rate: float = 1e-4) -> Run:
    return Run(
        model=families.shape(f"bert.{size}"),
        objective=(MLM(rate=0.15), NSP()),
        data=Shards(tokens=16_384, step=((0.0, 8),), longest=((0.0, 128), (0.9, 512))),
        optimizer=Optimizer(lr=rate, weight_decay=0.01),
        schedule=Schedule("linear", warmup="1%"),
        stop="100000",
        layout="padded",  # dropout in attention runs there
    )


def tiny() -> Run:
    """2 layers, width 128: 4.4 million parameters. A CPU is enough."""
    return _published("tiny", 5e-4)


def mini() -> Run:
    """4 layers, width 256: 11 million parameters."""
    return _published("mini", 3e-4)


def small() -> Run:
    """4 layers, width 512: 29 million parameters."""
    return _published("small", 2e-4)


def medium() -> Run:
    """8 layers, width 512: 41 million parameters."""
    return _published("medium", 2e-4)


def base() -> Run:
    """12 layers, width 768: 110 million parameters."""
    return _published("base")


def large() -> Run:
    """24 layers, width 1,024: 340 million parameters."""
    return _published("large")


def whole_words() -> Run:
    """BERT-base with whole words masked, as its authors' second release had it (May 2019, of large alone): all pieces of a word or none of them, at the
    same 15%, and nothing else changed. In seconds on a CPU: `bert.tiny --mlm.unit word`."""
    return replace(base(), objective=(MLM(rate=0.15, unit="word"), NSP()))


def demo() -> Run:
    """A few minutes on two cores: 4 layers, width 128, sequences of 64, no dropout (so it runs packed), and Muon, which leaves the plateau
    of single pieces in a hundred steps where AdamW takes thousands."""
    shape = families.shape("bert.mini").without_dropout()
    assert isinstance(shape.encoder, EncoderConfig)
    return Run(
        model=replace(shape, encoder=replace(shape.encoder, width=128, heads=2, hidden=512)),
        objective=(MLM(), NSP()),
        data=Shards(tokens=2_048, step=((0.0, 1),), longest=((0.0, 64),)),
        optimizer=Optimizer("muon", lr=0.02, rest=0.004, clip=5.0),
        schedule=Schedule("linear", warmup="5%"),
        stop="2min",
        evaluate="50%",
        evaluate_tokens=20_000,
    )
