"""What a family of models is: shapes by name, a config.json both ways, and the names its tensors have in files."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from unmask.errors import UserError
from unmask.model.embed import ImageEmbed, TextConfig, TextEmbed
from unmask.model.encoder import Encoder
from unmask.model.folder import Weights
from unmask.model.model import ModelConfig

Names = Mapping[str, str | tuple[str, ...]]


class Family(ABC):
    """Everything that only this family knows. One file, one subclass, no state."""

    shapes: ClassVar[Mapping[str, ModelConfig]]  # as published, by name
    prefix: ClassVar[str]  # before the trunk's names in a file that has heads
    names: ClassVar[Names]
    """Our module -> the file's, `{}` for each number in it; several are stacked, in that order. Trunk without prefix."""
    architectures: ClassVar[Mapping[str, tuple[str, ...]]]  # transformers' class -> the heads it has
    aliases: ClassVar[Mapping[str, str]] = {}  # a second name that files give the same tensor
    buffers: ClassVar[tuple[str, ...]] = ()  # patterns of tensors that are no weights

    @abstractmethod
    def read(self, config: Mapping[str, Any]) -> ModelConfig:
        """config.json -> the shape; heads come later, from the weights."""

    @abstractmethod
    def write(self, config: ModelConfig) -> dict[str, Any]:
        """The shape -> config.json."""

    @abstractmethod
    def pooler(self, config: ModelConfig) -> nn.Module:
        """The trunk's own, pretrained with it: what heads that read `pooled` are given."""

    @abstractmethod
    def head(self, name: str, config: ModelConfig, labels: int) -> nn.Module:
        """A head of that name; KeyError where the family has none.

        What gives its logits is called `out`, one row a label (of the word head, `decoder`): by it a head is known in a file.
        """

    def trunk(self, config: ModelConfig) -> tuple[nn.Module, nn.Module]:
        """What embeds, and the encoder."""
        width = config.encoder.width
        embed = TextEmbed(config.embed, width) if isinstance(config.embed, TextConfig) else ImageEmbed(config.embed, width)
        return embed, Encoder(config.encoder)

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """A config.json that does not say its model_type."""
        return any(name in self.architectures for name in architectures(config))

    def foreign(self, weights: Weights) -> Weights:
        """Weights under another library's names -> under the names above; as they are if they are not foreign."""
        return weights

    def bare(self, weights: Weights) -> dict[str, Any] | None:
        """A config for weights that come without one, where it can be read off them."""
        return None

    # ---- from here on nothing differs between families

    @property
    def heads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(head for heads in self.architectures.values() for head in heads))

    def theirs(self, name: str) -> tuple[str, ...]:
        """The names in a file of one of our parameters: of several, ours is theirs stacked along the first axis."""
        numbers = re.findall(r"(?<=\.)\d+(?=\.)", name)
        pattern = re.sub(r"(?<=\.)\d+(?=\.)", "{}", name)
        found: str | tuple[str, ...] | None = self.names.get(pattern)
        suffix = ""
        if found is None:
            module, _, last = pattern.rpartition(".")
            found, suffix = self.names[module], f".{last}"
        return tuple(f"{one.format(*numbers)}{suffix}" for one in ((found,) if isinstance(found, str) else found))

    def architecture(self, heads: tuple[str, ...]) -> str:
        """transformers' class for a model with these heads, the nearest one where none has just these."""
        return max(self.architectures, key=lambda name: _overlap(self.architectures[name], heads))


def architectures(config: Mapping[str, Any]) -> list[str]:
    """The classes of transformers that a config.json names."""
    said = config.get("architectures")
    return [name for name in said if isinstance(name, str)] if isinstance(said, list) else []


def whole(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A whole number above zero out of config.json; KeyError where it must be there and is not."""
    value = config[name] if default is None else config.get(name)
    value = default if value is None else value
    if type(value) is not int or not 0 < value < 2**31:
        raise UserError(f"config.json says {name} is {value!r}, it should be a whole number above 0; copy it again from where it came")
    return value


def part(config: Mapping[str, Any], name: str, default: float) -> float:
    """A number from 0 to 1 out of config.json, such as a rate of dropout."""
    value = config.get(name)
    value = default if value is None else value
    if type(value) not in (int, float) or not (math.isfinite(value) and 0 <= value <= 1):
        raise UserError(f"config.json says {name} is {value!r}, it should be a number from 0 to 1; copy it again from where it came")
    return float(value)


def flag(config: Mapping[str, Any], name: str, default: bool) -> bool:
    value = config.get(name)
    value = default if value is None else value
    if type(value) is not bool:
        raise UserError(f"config.json says {name} is {value!r}, it should be true or false; copy it again from where it came")
    return value


def text(config: Mapping[str, Any], name: str, default: str) -> str:
    value = config.get(name)
    value = default if value is None else value
    if type(value) is not str:
        raise UserError(f"config.json says {name} is {value!r}, it should be a text; copy it again from where it came")
    return value


def _overlap(theirs: tuple[str, ...], ours: tuple[str, ...]) -> tuple[int, int]:
    return len(set(theirs) & set(ours)), -len(set(theirs) - set(ours))
