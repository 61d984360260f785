"""Fill masks: which pieces stand where the text says [MASK]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from unmask.data.batch import Batch
from unmask.errors import UserError
from unmask.model.layout import FULL
from unmask.model.model import Model
from unmask.tasks.base import Answer, Array, Input, Task, Window, quote
from unmask.tokenizer import Encoding

Place = tuple[int, tuple[int, int]]  # which of the input's texts, and the characters there


@dataclass(frozen=True)
class Guess:
    piece: str
    score: float


@dataclass(frozen=True)
class Filled(Answer):
    """`masks[i]` holds the guesses for the i-th mask, best first; `text` is the input with the best ones put in.

    Each mask is guessed with the others still masked. Of a pair, `text` is both texts with a tab between.
    """

    text: str
    masks: tuple[tuple[Guess, ...], ...]

    def __str__(self) -> str:
        return "\n".join("  ".join(f"{guess.piece} {guess.score:.3f}" for guess in mask) for mask in self.masks)


class Fill(Task):
    """`top` is how many guesses a mask gets."""

    head = "words"
    over = "tokens"
    pairs = None
    defaults: ClassVar[Mapping[str, Any]] = {"top": 5}

    def windows(self, inputs: Sequence[str | tuple[str, str]]) -> list[Window]:
        self.whole("top")  # a wrong one is told before the model runs
        encodings = self.pieces.encode(inputs, length=self.card.length, offsets=True)
        mask = self.pieces.piece(self.pieces.special("mask"))
        for given, encoding in zip(inputs, encodings, strict=True):
            there, read = "\t".join([given] if isinstance(given, str) else given).count(mask), len(self._places(encoding))
            if not there:
                raise UserError(f"{quote(given)} has no {mask} in it; put one where a word is to be guessed")
            if read < there:
                raise UserError(f"{there - read} {mask} of {quote(given)} stand beyond the model's {self.card.length} pieces; shorten the text")
        return [Window(encoding, i) for i, encoding in enumerate(encodings)]

    def outputs(self, model: Model, rows: Tensor, batch: Batch) -> Tensor:
        """(masks, top, 2): the likeliest pieces' probabilities and ids (float32 holds every id below 2^24).

        The word head is the widest layer there is: it runs on the masked rows alone, and only what is asked for leaves the device.
        """
        if getattr(model.config.encoder, "reach", (FULL,))[0][1] == 0:
            raise UserError("this model reads left to right, and its word head says which piece comes next, not which one is masked; it cannot fill masks")
        masked = batch.inputs["tokens"] == self.pieces.special("mask")
        chances = model.read(self.head, rows[masked], batch.layout).float().softmax(-1)
        best = chances.topk(min(self.whole("top"), chances.shape[-1]))
        return torch.stack([best.values, best.indices.float()], -1)

    def rows(self, window: Window) -> int:
        return window.encoding.ids.count(self.pieces.special("mask"))

    def decode(self, given: Input, windows: Sequence[Window], outputs: Sequence[Array]) -> Filled:
        masks = tuple(tuple(Guess(self.pieces.piece(int(number)), float(score)) for score, number in best) for best in outputs[0])
        texts = [given] if isinstance(given, str) else [str(part) for part in given]  # type: ignore[union-attr]
        places = self._places(windows[0].encoding)
        for (which, (start, end)), guesses in reversed(list(zip(places, masks, strict=True))):  # from the back, so that places stay true
            texts[which] = _put(texts[which], start, end, *self.pieces.spelled(guesses[0].piece))
        return Filled("\t".join(texts), masks)

    def _places(self, encoding: Encoding) -> list[Place]:
        """Where the masks stand, in reading order."""
        mask, offsets, texts = self.pieces.special("mask"), encoding.offsets, encoding.sequence_ids
        return [(texts[i] or 0, offsets[i]) for i, number in enumerate(encoding.ids) if number == mask]


def _put(text: str, start: int, end: int, piece: str, joins: bool) -> str:
    """The piece in place of text[start:end]. One that continues a word joins the word before it; else the user's spaces stay."""
    mask = text[start:end]  # some tokenizers count the space before a mask as part of it
    before = text[:start] + mask[: len(mask) - len(mask.lstrip())]
    return (before.rstrip() if joins else before) + piece + mask[len(mask.rstrip()) :] + text[end:]
