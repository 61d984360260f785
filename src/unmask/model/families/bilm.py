"""ELMo's two language models (Peters et al. 2018): LSTMs that read to the right, and others that read to the left; the baseline that BERT was held against.

What enters is pieces, as everywhere here, where the paper has a net over characters; what the two read never meets but side by side in the states.
transformers has no such model, so its folders load only here.
Letters: T tokens, P the width of one side, D = 2 P the width of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from unmask.model import heads
from unmask.model.embed import TextConfig, TextEmbed
from unmask.model.families.base import Family, Names, part, whole, words_of
from unmask.model.layout import Layout
from unmask.model.model import Model, ModelConfig, initialise


@dataclass(frozen=True)
class Sides:
    """The shape of both: LSTMs of `hidden` cells whose output is projected to half of the width (Sak et al. 2014)."""

    width: int
    depth: int
    hidden: int
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.width % 2 or self.hidden <= self.width // 2:
            raise ValueError(f"a width of {self.width} is of two sides, each narrower than its {self.hidden} cells")

    @property
    def layers(self) -> int:
        return self.depth

    def __str__(self) -> str:
        return f"{self.depth} layers each way, width {self.width // 2} a side, {self.hidden} cells"


class Both(nn.Module):
    """An LSTM each way; added to what came in, but for the first (section 3.4)."""

    def __init__(self, config: Sides, *, first: bool) -> None:
        super().__init__()
        side = config.width // 2
        self.first = first
        self.ahead = nn.LSTM(side, config.hidden, proj_size=side)
        self.back = nn.LSTM(side, config.hidden, proj_size=side)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, orders: tuple[PackedSequence, PackedSequence]) -> Tensor:
        """(T, D) -> (T, D)"""
        read = [_read(lstm, side, order) for lstm, side, order in zip((self.ahead, self.back), x.chunk(2, -1), orders, strict=True)]
        found = self.drop(torch.cat(read, -1))
        return found if self.first else x + found


class Stack(nn.Module):
    def __init__(self, config: Sides) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(Both(config, first=i == 0) for i in range(config.depth))

    def forward(self, x: Tensor, positions: Tensor | None, layout: Layout) -> Tensor:
        for state in self.states(x, positions, layout):
            x = state
        return x

    def states(self, x: Tensor, positions: Tensor | None, layout: Layout) -> Iterator[Tensor]:
        """What enters, once for each side, and what leaves each layer: (T, D) packed or (B, S, D) padded, zeros where nothing stands."""
        orders = _orders(x.shape[:-1], layout, x.device)
        shape = (*x.shape[:-1], self.config.width)
        x = torch.cat([x, x], -1).flatten(0, -2)
        yield x.view(shape)
        for layer in self.layers:
            x = layer(x, orders)
            yield x.view(shape)


def _orders(shape: torch.Size, layout: Layout, device: torch.device) -> tuple[PackedSequence, PackedSequence]:
    """In which order the kernel takes the tokens: all first ones, then all second ones; from the left, and from the right."""
    places = layout.split(torch.arange(shape.numel(), device=device).view(shape))
    return pack_sequence(places, enforce_sorted=False), pack_sequence([one.flip(0) for one in places], enforce_sorted=False)


def _read(lstm: nn.LSTM, x: Tensor, order: PackedSequence) -> Tensor:
    """Every sequence of x by that LSTM, in that order: (T, P) -> (T, P)."""
    rows = PackedSequence(x.index_select(0, order.data), order.batch_sizes, order.sorted_indices, order.unsorted_indices)
    return torch.zeros_like(x).index_copy(0, order.data, lstm(rows)[0].data)


def _shape(hidden: int, side: int) -> ModelConfig:
    words = TextConfig(30_522, segments=0, kind="none", norm=False, dropout=0.1)
    return ModelConfig("bilm", words, Sides(2 * side, 2, hidden, 0.1), pooler=False, head_dropout=0.1)


class BiLM(Family):
    shapes: ClassVar[Mapping[str, ModelConfig]] = {"small": _shape(1024, 128), "medium": _shape(2048, 256), "original": _shape(4096, 512)}
    prefix: ClassVar[str] = "bilm."
    architectures: ClassVar[Mapping[str, tuple[str, ...]]] = {  # names of our own
        "BiLMModel": (),
        "BiLMForSequenceClassification": ("classify",),
        "BiLMForTokenClassification": ("tag",),
        "BiLMForQuestionAnswering": ("spans",),
    }
    model_types: ClassVar[tuple[str, ...]] = ("unmask-bilm",)
    names: ClassVar[Names] = {
        name: name for name in ("embed.words", "encoder.layers.{}.ahead", "encoder.layers.{}.back", "heads.classify.out", "heads.tag.out", "heads.spans.out")
    }

    def trunk(self, config: ModelConfig) -> tuple[nn.Module, nn.Module]:
        assert isinstance(config.embed, TextConfig)
        assert isinstance(config.encoder, Sides)
        return TextEmbed(config.embed, config.encoder.width // 2), Stack(config.encoder)

    def head(self, name: str, config: ModelConfig, labels: int) -> nn.Module:
        """Of a text, over the mean of its states: at its first token one side has read nothing, at its last the other."""
        over: heads.Over = {"classify": "texts", "tag": "tokens", "spans": "tokens"}[name]  # type: ignore[assignment]
        return heads.Linear(config.encoder.width, labels, over, config.head_dropout if name != "spans" else 0.0, mean=True)

    @torch.no_grad()
    def start(self, model: Model, draw: torch.Generator) -> None:
        """What leaves a layer is about as wide as what enters it, and nothing is forgotten at first (Jozefowicz et al. 2015, section 2.2)."""
        initialise(model, draw)
        initialise(model.embed, draw, deviation=(model.config.encoder.width // 2) ** -0.5)
        for lstm in (module for module in model.encoder.modules() if isinstance(module, nn.LSTM)):
            for name, weight in lstm.named_parameters():
                if weight.ndim == 2:
                    weight.uniform_(-(weight.shape[1] ** -0.5), weight.shape[1] ** -0.5, generator=draw)
                else:  # two biases that are added; of four gates the second keeps
                    weight.zero_()[lstm.hidden_size : 2 * lstm.hidden_size] = float(name.startswith("bias_hh"))

    def read(self, config: Mapping[str, Any]) -> ModelConfig:
        words = replace(words_of(config, kind="none", norm=False), segments=0)
        sides = Sides(whole(config, "hidden_size"), whole(config, "num_hidden_layers"), whole(config, "intermediate_size"), words.dropout)
        return ModelConfig("bilm", words, sides, pooler=False, head_dropout=part(config, "classifier_dropout", words.dropout))

    def write(self, config: ModelConfig) -> dict[str, Any]:
        words, sides = config.embed, config.encoder
        assert isinstance(words, TextConfig)
        assert isinstance(sides, Sides)
        return {
            "model_type": "unmask-bilm",
            "vocab_size": words.vocabulary,
            "max_position_embeddings": words.positions,
            "pad_token_id": words.padding,
            "hidden_size": sides.width,
            "num_hidden_layers": sides.depth,
            "intermediate_size": sides.hidden,
            "hidden_dropout_prob": sides.dropout,
            "classifier_dropout": config.head_dropout,
        }
