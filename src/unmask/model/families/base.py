"""What a family of models is: shapes by name, a config.json both ways, and the names its tensors have in files."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from unmask.errors import UserError
from unmask.model import heads
from unmask.model.embed import ImageConfig, ImageEmbed, TextConfig, TextEmbed
from unmask.model.encoder import Encoder, EncoderConfig
from unmask.model.folder import Weights
from unmask.model.layout import CAUSAL, FULL
from unmask.model.model import Model, ModelConfig, initialise

Names = Mapping[str, str | tuple[str, ...]]


class Family(ABC):
    """Everything that only this family knows. One file, one subclass, no state."""

    shapes: ClassVar[Mapping[str, ModelConfig]]  # as published, by name
    prefix: ClassVar[str]  # before the trunk's names in a file that has heads
    names: ClassVar[Names]
    """Our module -> the file's, `{}` for each number in it; several are stacked, in that order. Trunk without prefix."""
    architectures: ClassVar[Mapping[str, tuple[str, ...]]]  # transformers' class -> the heads it has
    model_types: ClassVar[tuple[str, ...]] = ()  # what config.json may call it beside the family's own name
    known_by: ClassVar[Mapping[str, str]] = {}  # a head -> the parameter that only files with that head hold, where it is not the usual one
    aliases: ClassVar[Mapping[str, str]] = {}  # a second name that files give the same tensor
    buffers: ClassVar[tuple[str, ...]] = ()  # patterns of tensors that are no weights

    @abstractmethod
    def read(self, config: Mapping[str, Any]) -> ModelConfig:
        """config.json -> the shape; heads come later, from the weights."""

    @abstractmethod
    def write(self, config: ModelConfig) -> dict[str, Any]:
        """The shape -> config.json."""

    @abstractmethod
    def head(self, name: str, config: ModelConfig, labels: int) -> nn.Module:
        """A head of that name; KeyError where the family has none.

        What gives its logits is called `out`, one row a label (of the word head, `decoder`): by it a head is known in a file.
        """

    def trunk(self, config: ModelConfig) -> tuple[nn.Module, nn.Module]:
        """What embeds, and the encoder."""
        width, encoder = config.encoder.width, config.encoder
        assert isinstance(encoder, EncoderConfig)
        embed = TextEmbed(config.embed, width) if isinstance(config.embed, TextConfig) else ImageEmbed(config.embed, width)
        return embed, Encoder(encoder)

    def pooler(self, config: ModelConfig) -> nn.Module:
        """The trunk's own, pretrained with it: what heads that read `pooled` are given. A family without one names none."""
        return heads.Pooler(config.encoder.width)

    def start(self, model: Model, draw: torch.Generator) -> None:
        """Fresh weights for a whole model."""
        initialise(model, draw)

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """A config.json that does not say its model_type."""
        return any(name in self.architectures for name in architectures(config))

    def foreign(self, weights: Weights) -> Weights:
        """Weights under another library's names -> under the names above; as they are if they are not foreign."""
        return weights

    def native(self, config: ModelConfig, name: str) -> str:
        """The other way, where one model of the family spells a name as the others don't."""
        return name

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

    def architecture(self, config: ModelConfig) -> str:
        """transformers' class for a model with these heads, the nearest one where none has just these.

        It names every head that its tensors alone do not tell from another, and if it can none that is not there: a file tells the rest.
        """
        ours, tellers = {name for name, _ in config.heads}, [known_by(self, head) for head in self.heads]
        doubtful = {head for head in ours if tellers.count(known_by(self, head)) > 1}
        theirs = {name: set(has) for name, has in self.architectures.items()}
        return max(theirs, key=lambda name: (len(doubtful & theirs[name]), -len(theirs[name] - ours), len(ours & theirs[name])))


def known_by(kind: Family, owner: str) -> str:
    """The one tensor by which a head, or the pooler, is known in a file."""
    usual = {"words": "heads.words.dense.weight", "pooler": "pooler.dense.weight"}.get(owner, f"heads.{owner}.out.weight")
    return kind.theirs(kind.known_by.get(owner, usual))[0]


def architectures(config: Mapping[str, Any]) -> list[str]:
    """The classes of transformers that a config.json names."""
    said = config.get("architectures")
    return [name for name in said if isinstance(name, str)] if isinstance(said, list) else []


# ---- what most configs say in the same words


def encoder_of(config: Mapping[str, Any], dropout: float = 0.1, activation: str = "gelu", **others: Any) -> EncoderConfig:
    return EncoderConfig(
        width=whole(config, "hidden_size"),
        depth=whole(config, "num_hidden_layers"),
        heads=whole(config, "num_attention_heads"),
        hidden=whole(config, "intermediate_size"),
        epsilon=part(config, "layer_norm_eps", 1e-12),
        activation=text(config, "hidden_act", activation),
        dropout=part(config, "hidden_dropout_prob", dropout),
        attention_dropout=part(config, "attention_probs_dropout_prob", dropout),
        reach=(CAUSAL if flag(config, "is_decoder", False) else FULL,),
        **others,
    )


def encoder_said(encoder: Any) -> dict[str, Any]:
    """What `encoder_of` reads."""
    return {
        "hidden_size": encoder.width,
        "num_hidden_layers": encoder.depth,
        "num_attention_heads": encoder.heads,
        "intermediate_size": encoder.hidden,
        "layer_norm_eps": encoder.epsilon,
        "hidden_act": encoder.activation,
        "hidden_dropout_prob": encoder.dropout,
        "attention_probs_dropout_prob": encoder.attention_dropout,
        "is_decoder": encoder.reach == (CAUSAL,),
    }


def words_of(config: Mapping[str, Any], dropout: float = 0.1, padding: int = 0, **others: Any) -> TextConfig:
    said = config.get("pad_token_id")
    return TextConfig(
        vocabulary=whole(config, "vocab_size"),
        positions=whole(config, "max_position_embeddings", 512),
        segments=whole(config, "type_vocab_size", 2),
        epsilon=part(config, "layer_norm_eps", 1e-12),
        dropout=part(config, "hidden_dropout_prob", dropout),
        padding=said if type(said) is int and said >= 0 else padding,
        **others,
    )


def words_said(words: Any) -> dict[str, Any]:
    return {
        "vocab_size": words.vocabulary,
        "max_position_embeddings": words.positions + words.first,
        "type_vocab_size": words.segments,
        "pad_token_id": words.padding,
        "position_embedding_type": "absolute",
    }


def counts_on(config: Mapping[str, Any]) -> bool:
    """Whether positions go on from the padding's id, as RoBERTa's do and BERT's don't: told by that id, else by two positions too many."""
    padding, positions = config.get("pad_token_id"), config.get("max_position_embeddings")
    return padding == 1 if padding is not None else type(positions) is int and positions % 64 == 2


def image_of(config: Mapping[str, Any], extra: int) -> ImageConfig:
    return ImageConfig(
        size=two(config, "image_size", 224),
        patch=_square(two(config, "patch_size", 16)),
        channels=whole(config, "num_channels", 3),
        extra=extra,
        dropout=part(config, "hidden_dropout_prob", 0.0),
    )


def image_said(image: Any) -> dict[str, Any]:
    return {
        "image_size": image.size[0] if image.size[0] == image.size[1] else list(image.size),
        "patch_size": image.patch,
        "num_channels": image.channels,
    }


def two(config: Mapping[str, Any], name: str, default: int) -> tuple[int, int]:
    """A side, or two of them: height, width."""
    sides = config.get(name)
    if isinstance(sides, list) and len(sides) == 2:
        return whole({name: sides[0]}, name), whole({name: sides[1]}, name)
    side = whole(config, name, default)
    return side, side


def _square(patch: tuple[int, int]) -> int:
    if patch[0] != patch[1]:
        raise UserError(f"config.json asks for patches of {patch[0]} x {patch[1]}; only square patches are known here")
    return patch[0]


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
