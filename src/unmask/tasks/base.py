"""What a task is: inputs cut into windows that the model takes, logits made into answers a person can use."""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from unmask.data.batch import Batch
from unmask.errors import UserError, near
from unmask.model.card import Card
from unmask.model.model import Model
from unmask.tokenizer import Encoding, Tokenizer

Input = str | tuple[str, str] | Path
Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Answer(ABC):
    """What a user is given: `str` of it is a line for a person, `json` the whole for a machine."""

    @abstractmethod
    def __str__(self) -> str: ...

    def json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Window:
    """A piece of an input that fits the model; `owner` is the number of the input it was cut from."""

    encoding: Encoding
    owner: int
    before: int = 0  # how many pieces of the input stand before this window's own


class Task(ABC):
    """`head` is the one of the model it reads; `pairs` says whether an input must be two texts (None: either), `several` whether
    the second of them is a list of texts.
    """

    head: ClassVar[str]
    over: ClassVar[str]  # texts: a row of numbers a window; tokens: a row a token of it
    pairs: ClassVar[bool | None] = None
    several: ClassVar[bool] = False
    defaults: ClassVar[Mapping[str, Any]] = {}  # every option it takes, as it is when nobody says otherwise

    def __init__(self, tokenizer: Tokenizer | None, card: Card, **options: Any) -> None:
        for name in options:
            if name not in self.defaults:
                task = type(self).__module__.rpartition(".")[2]
                raise UserError(f"{task} has no option {name!r}{near(name, self.defaults)}" if self.defaults else f"{task} has no options; leave {name} out")
        self.tokenizer = tokenizer
        self.card = card
        self.options = {**self.defaults, **options}

    @property
    def pieces(self) -> Tokenizer:
        if self.tokenizer is None:
            raise UserError("this model reads images, not texts; give it paths of pictures")
        return self.tokenizer

    def whole(self, name: str) -> int:
        """An option that counts something."""
        value = self.options[name]
        if not isinstance(value, Integral) or value < 1:
            raise UserError(f"{name} is {value!r}; give a whole number, 1 or more")
        return int(value)

    def windows(self, inputs: Sequence[str | tuple[str, str]]) -> list[Window]:
        """One window an input, cut to the model's length; tasks that must read all of a text cut several."""
        return [Window(encoding, i) for i, encoding in enumerate(self.pieces.encode(inputs, length=self.card.length))]

    def outputs(self, model: Model, rows: Tensor, batch: Batch) -> Tensor:
        """From the encoder's rows to what `decode` wants, still on the device."""
        return model.read(self.head, rows, batch.layout)

    def rows(self, window: Window) -> int:
        """How many rows of what `outputs` gives are this window's."""
        return 1 if self.over == "texts" else len(window.encoding)

    @abstractmethod
    def decode(self, given: Input, windows: Sequence[Window], outputs: Sequence[Array]) -> Any:
        """The answer to one input, from the outputs of all its windows."""


def owned(encoding: Encoding, owner: int, step: int) -> list[Window]:
    """An encoding and what overflowed from it, as windows in reading order, each beginning `step` pieces after the one before."""
    return [Window(part, owner, i * step) for i, part in enumerate((encoding, *encoding.overflowing))]


def spelled(text: str, start: int, end: int) -> tuple[int, int]:
    """Where the letters of text[start:end] stand. Byte-level tokenizers count the space before a word as part of it; those that
    drop accents end e + U+0301 before the U+0301.
    """
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    while start < end < len(text) and unicodedata.category(text[end]) == "Mn":
        end += 1
    return start, end


def quote(given: Input) -> str:
    """Enough of an input to know it by in a message: its number there would be one in a chunk, not one in the user's file."""
    text = " | ".join(given) if isinstance(given, tuple) else str(given)
    return repr(text if len(text) <= 60 else text[:59] + "…")


def softmax(logits: Array) -> Array:
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)
