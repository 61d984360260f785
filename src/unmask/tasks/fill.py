"""Fill masks: which pieces stand where the text says [MASK]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from unmask.data.batch import Batch
from unmask.errors import UserError
from unmask.model.model import Model
from unmask.tasks.base import Answer, Array, Input, Task, Window, softmax


@dataclass(frozen=True)
class Guess:
    piece: str
    score: float


@dataclass(frozen=True)
class Filled(Answer):
    """`masks[i]` holds the guesses for the i-th mask, best first; `text` is the input with the best ones put in."""

    text: str
    masks: tuple[tuple[Guess, ...], ...]

    def json(self) -> dict[str, Any]:
        return {"text": self.text, "masks": [[{"piece": g.piece, "score": g.score} for g in mask] for mask in self.masks]}


class Fill(Task):
    head = "words"
    over = "tokens"
    pairs = None

    def windows(self, inputs: Sequence[str | tuple[str, str]]) -> list[Window]:
        encodings = self.pieces.encode(inputs, length=self.card.length, offsets=True)
        mask = self.pieces.special("mask")
        for number, encoding in enumerate(encodings):
            if mask not in encoding.ids:
                where = "within the model's length" if any(mask in part.ids for part in encoding.overflowing) else "in it"
                raise UserError(f"text {number + 1} has no {self.pieces.piece(mask)} {where}; put it where a word is to be guessed")
        return [Window(encoding, i) for i, encoding in enumerate(encodings)]

    def read(self, model: Model, rows: Tensor, batch: Batch) -> Tensor:
        """The word head is the widest layer there is: it runs on the masked rows alone, the others stay empty."""
        masked = batch.inputs["tokens"] == self.pieces.special("mask")
        return model.read(self.head, rows[masked], batch.layout)

    def rows(self, window: Window) -> int:
        """How many rows of what `read` gives are this window's."""
        return window.encoding.ids.count(self.pieces.special("mask"))

    def decode(self, given: Input, windows: Sequence[Window], outputs: Sequence[Array]) -> Filled:
        top = int(self.options.get("top", 5))
        masks = []
        for chances in softmax(outputs[0]):
            best = np.argsort(-chances)[:top]
            masks.append(tuple(Guess(self.pieces.piece(int(i)), float(chances[i])) for i in best))
        return Filled(self._text(given, windows[0], masks), tuple(masks))

    def _text(self, given: Input, window: Window, masks: Sequence[Sequence[Guess]]) -> str:
        encoding, mask = window.encoding, self.pieces.special("mask")
        texts = [given] if isinstance(given, str) else [str(part) for part in given]  # type: ignore[union-attr]
        places = [i for i, number in enumerate(encoding.ids) if number == mask]
        for place, guesses in reversed(list(zip(places, masks, strict=True))):
            start, end = encoding.offsets[place]
            which = encoding.sequence_ids[place] or 0
            text, piece = texts[which], guesses[0].piece
            before = text[:start]
            if piece.startswith("##"):
                piece, before = piece[2:], before.rstrip()
            texts[which] = before + piece + text[end:]
        return "\t".join(texts)
