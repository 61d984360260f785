"""What a task is: inputs cut into windows that the model takes, logits made into answers a person can use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from unmask.data.batch import Batch
from unmask.errors import UserError
from unmask.model.card import Card
from unmask.model.model import Model
from unmask.tokenizer import Encoding, Tokenizer

Input = str | tuple[str, str] | Path
Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Answer:
    """What a user is given."""

    def json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Window:
    """A piece of an input that fits the model; `owner` is the number of the input it was cut from."""

    encoding: Encoding
    owner: int


class Task(ABC):
    """`head` is the one of the model it reads; `pairs` says whether an input must be two texts (None: either)."""

    head: ClassVar[str]
    over: ClassVar[str]  # texts: a row of numbers a window; tokens: a row a token of it
    pairs: ClassVar[bool | None] = None

    def __init__(self, tokenizer: Tokenizer | None, card: Card, **options: Any) -> None:
        self.tokenizer = tokenizer
        self.card = card
        self.options = options

    @property
    def pieces(self) -> Tokenizer:
        if self.tokenizer is None:
            raise UserError("this model reads images, not texts; give it paths of pictures")
        return self.tokenizer

    def windows(self, inputs: Sequence[str | tuple[str, str]]) -> list[Window]:
        """One window an input, cut to the model's length; tasks that must read all of a text cut several."""
        return [Window(encoding, i) for i, encoding in enumerate(self.pieces.encode(inputs, length=self.card.length))]

    def read(self, model: Model, rows: Tensor, batch: Batch) -> Tensor:
        """From the encoder's rows to what `decode` wants, still on the device."""
        return model.read(self.head, rows, batch.layout)

    def rows(self, window: Window) -> int:
        """How many rows of what `read` gives are this window's."""
        return 1 if self.over == "texts" else len(window.encoding)

    @abstractmethod
    def decode(self, given: Input, windows: Sequence[Window], outputs: Sequence[Array]) -> Any:
        """The answer to one input, from the outputs of all its windows."""


def owned(encodings: Sequence[Encoding]) -> list[Window]:
    """Each encoding and what overflowed from it, as windows in reading order."""
    return [Window(part, i) for i, encoding in enumerate(encodings) for part in (encoding, *encoding.overflowing)]


def softmax(logits: Array) -> Array:
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)
