"""What BERT was held against, and what came after it, at one size: the same text, tokens and steps, another objective."""

from __future__ import annotations

from unmask.model import families
from unmask.objectives.base import Objective
from unmask.objectives.bilm import BiLM
from unmask.objectives.causal import Causal
from unmask.objectives.rtd import RTD
from unmask.train.optim import Optimizer
from unmask.train.run import Run, Shards
from unmask.train.schedule import Schedule


def _small(shape: str, objective: Objective, rate: float) -> Run:
    """As `bert.small` reads: 131,072 tokens a step, of length 128."""
    return Run(
        model=families.shape(shape),
        objective=(objective,),
        data=Shards(tokens=16_384, step=((0.0, 8),), longest=((0.0, 128),)),
        optimizer=Optimizer(lr=rate, weight_decay=0.01),
        schedule=Schedule("linear", warmup="1%"),
        stop="100000",
        layout="packed" if shape.startswith("bilm") else "padded",  # dropout in attention runs padded
    )


def gpt() -> Run:
    """GPT (Radford et al. 2018) in the shape of BERT-small, 4 layers of width 512: left to right, each token asked for the next. Its blocks are BERT's,
    with the norm after the sum as GPT's were, so that only the objective and how far a token sees differ from `bert.small`; GPT-1 itself is
    12 layers of width 768 and learned at 2.5e-4. It is saved as transformers' BertLMHeadModel."""
    return _small("bert.small", Causal(), 2e-4)


def elmo() -> Run:
    """ELMo (Peters et al. 2018) in AllenNLP's small shape: two layers of 1,024 cells each way, projected to 128, over word pieces in place of characters.
    The paper learned by Adagrad at 0.2 with sampled words over 800,000 of them; pieces are few enough to take all, and AdamW at 1e-3 is used here.
    Its folder embeds, tags and classifies; the softmax stays behind."""
    return _small("bilm.small", BiLM(), 1e-3)


def electra() -> Run:
    """ELECTRA-small (Clark et al. 2020, table 6): 12 layers of width 256, embeddings of 128, a generator a quarter as wide, 15% masked, weight 50,
    rate 5e-4 and length 128 as published, where a step was 128 sequences. The folder is the discriminator, as transformers' ElectraForPreTraining."""
    return _small("electra.small", RTD(rate=0.15, generator=0.25, weight=50.0), 5e-4)
