"""Replaced tokens (Clark et al. 2020): a small generator fills masks, and the model says of every token whether it was there.

Which pieces are masked and what the generator puts there are functions of (seed, epoch, sample, position): each masked row has a number of
its own, and the piece is where it falls among the cumulative sums of the generator's chances.
The two share what embeds, but for the layer that brings it to the width of each (section 3.2). The generator stays behind in the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.data.batch import Batch
from unmask.data.keys import hashed, key, uniform
from unmask.data.stream import IGNORED, Rows
from unmask.errors import UserError
from unmask.model import families
from unmask.model.embed import TextConfig
from unmask.model.encoder import EncoderConfig
from unmask.model.model import Model, ModelConfig
from unmask.objectives.base import Frame, Learner, Objective, name_of
from unmask.objectives.mlm import Masking

Numbers = np.ndarray[Any, np.dtype[Any]]
RATE = 0.15


@dataclass(frozen=True)
class RTD(Objective):
    """`generator` is its width as a share of the model's (table 6: 1/4 to 1/3), `weight` how much the loss of replaced tokens counts beside its own."""

    rate: float = RATE
    generator: float = 0.25
    weight: float = 50.0

    terms: ClassVar[tuple[str, ...]] = ("words", "replaced")
    pieces: ClassVar[tuple[str, ...]] = ("words",)

    def __post_init__(self) -> None:
        if not 0 < self.generator <= 1 or self.weight <= 0:
            raise UserError(f"a generator of {self.generator} and a weight of {self.weight} cannot be; give a share from 0 to 1, and a number above 0")

    def heads(self, vocabulary: int) -> dict[str, int]:
        return {"replaced": 1}

    def weights(self) -> dict[str, float]:
        return {"words": 1.0, "replaced": self.weight}

    def judges(self) -> tuple[str, ...]:
        """Not the generator's: it stays behind, and one that goes on learning would have the last model called the best whatever that has learned."""
        return ("replaced",)

    def called(self) -> dict[str, str]:
        return {"words": "the generator's masked words", "replaced": "replaced words"}

    def asks(self, frame: Frame) -> Replacing:
        return Replacing(Masking(frame.pieces, RATE if frame.fixed else self.rate, mask=1.0, other=0.0, seed=frame.seed))

    def beside(self, model: Model, seed: int) -> Model:
        """The generator. It embeds by the model's own tables and norm, as the published code has it."""
        found = families.new(_narrow(model.config, self.generator), key(seed, "generator") >> 1)
        for name in ("words", "positions", "segments", "norm"):
            setattr(found.embed, name, getattr(model.embed, name))
        found.tie()
        return found

    def answering(self, learner: Learner) -> dict[str, nn.Module]:
        generator = cast(Model, learner.beside[name_of(self)])
        return {"words": generator.heads["words"], "replaced": learner.model.heads["replaced"]}

    def before(self, learner: Learner, batch: Batch) -> tuple[Batch, dict[str, Tensor]]:
        """The generator guesses, and its guesses stand where the masks stood."""
        generator, targets = learner.beside[name_of(self)], batch.targets
        rows, answers = targets["words.rows"], targets["words.labels"]
        states = batch.layout.tokens(generator(batch.inputs, batch.layout))
        logits = generator.heads["words"](states[rows], batch.layout)  # type: ignore[index, operator]
        logits = logits if logits.dtype == torch.float64 else logits.float()
        losses = {"words": F.cross_entropy(logits, answers, ignore_index=IGNORED, reduction="sum")}
        losses["words.right"] = (logits.detach().argmax(-1) == answers).sum()
        pieces = sampled(logits, targets["words.draws"])
        tokens, asked = batch.inputs["tokens"], answers != IGNORED
        places = batch.layout.tokens(torch.arange(tokens.numel(), device=tokens.device).view(tokens.shape))
        shown = _put(tokens.flatten(), places[rows], pieces, asked).view(tokens.shape)
        labels = _put(targets["replaced.labels"], rows, (pieces != answers).long(), asked)
        return replace(batch, inputs={**batch.inputs, "tokens": shown}, targets={**targets, "replaced.labels": labels}), losses

    def losses(self, learner: Learner, states: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Over all tokens, those that nobody masked and [CLS] too (equation 2)."""
        logits = learner.model.heads["replaced"](batch.layout.tokens(states), batch.layout)[:, 0]
        logits = logits if logits.dtype == torch.float64 else logits.float()
        labels = batch.targets["replaced.labels"]
        asked = labels != IGNORED
        loss = F.binary_cross_entropy_with_logits(logits, labels.clamp(min=0).to(logits.dtype), asked.to(logits.dtype), reduction="sum")
        return {"replaced": loss, "replaced.right": ((logits.detach() > 0) == (labels == 1)).logical_and(asked).sum()}


@dataclass(frozen=True)
class Replacing:
    """Masks, a number in [0, 1) for each, and every token to be asked about: `original` until the generator has put another in."""

    masking: Masking

    def ask(self, rows: Rows, epoch: int, share: float = 0.0) -> tuple[Numbers, Mapping[str, Numbers]]:
        shown, targets = self.masking.ask(rows, epoch, share)
        places = targets["words.rows"]
        draws = uniform(hashed(key(self.masking.seed, "sample", epoch), rows.samples[places], rows.positions[places]))
        real = np.arange(len(rows.tokens)) < rows.lengths.sum()
        return shown, {**targets, "words.draws": draws, "replaced.labels": np.where(real, 0, IGNORED)}


@torch.no_grad()
def sampled(logits: Tensor, draws: Tensor) -> Tensor:
    """A piece a row. Summed in float64: how 30,000 chances are rounded in float32 would decide between neighbours."""
    sums = logits.softmax(-1).cumsum(-1, dtype=torch.float64)
    found = torch.searchsorted(sums, (draws * sums[:, -1])[:, None], right=True)[:, 0]
    return found.clamp(max=logits.shape[-1] - 1)


def _put(values: Tensor, places: Tensor, new: Tensor, asked: Tensor) -> Tensor:
    """The new ones at their places. Rows that only fill up write beyond the end, so that a GPU need not say how many there are."""
    found = F.pad(values, (0, 1))
    found[torch.where(asked, places, len(values))] = new
    return found[:-1]


def _narrow(config: ModelConfig, share: float) -> ModelConfig:
    """The generator's shape: as deep, narrower in all else but what embeds."""
    encoder, words = config.encoder, config.embed
    assert isinstance(encoder, EncoderConfig)
    assert isinstance(words, TextConfig)
    width, heads = round(encoder.width * share), max(1, round(encoder.heads * share))
    if width < heads or width % heads:
        raise UserError(f"a generator of {share:g} of {encoder.width} is {width} wide, which {heads} heads cannot share; choose another rtd.generator")
    inner = words.width or encoder.width
    narrow = replace(encoder, width=width, heads=heads, hidden=round(encoder.hidden * share))
    embed = replace(words, width=inner if inner != width else 0)
    return replace(config, encoder=narrow, embed=embed, heads=(("words", words.vocabulary),), pooler=False)
