"""A model: what embeds, the encoder, a pooler and heads. How its tensors are named in files stands in `weights.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from unmask.model.embed import ImageConfig, ImageEmbed, TextConfig
from unmask.model.layout import Layout


class Trunk(Protocol):
    """What everybody may ask of the shape of what stands between embedding and heads; `str` of it is for people."""

    @property
    def width(self) -> int: ...  # of the rows that leave it

    @property
    def depth(self) -> int: ...  # how many states follow the one that enters

    @property
    def layers(self) -> int: ...  # how many parts have weights of their own


@dataclass(frozen=True)
class ModelConfig:
    """A whole shape. `heads` are names, each with its number of labels; `pooler`: it carries one though no head reads it."""

    family: str
    embed: TextConfig | ImageConfig
    encoder: Trunk
    heads: tuple[tuple[str, int], ...] = ()
    pooler: bool = True
    tied: bool = True  # the word head's matrix is the embedding's
    head_dropout: float = 0.0
    details: tuple[tuple[str, Any], ...] = ()  # what only the family itself reads

    def with_heads(self, **heads: int) -> ModelConfig:
        return replace(self, heads=tuple(heads.items()))

    def without_dropout(self) -> ModelConfig:
        embed, encoder = replace(self.embed, dropout=0.0), self.encoder
        if is_dataclass(encoder) and not isinstance(encoder, type):
            none = {one.name: 0.0 for one in fields(encoder) if one.name in ("dropout", "attention_dropout")}
            encoder = replace(encoder, **none)
        return replace(self, embed=embed, encoder=encoder, head_dropout=0.0)

    def detail(self, name: str, usual: Any = None) -> Any:
        return dict(self.details).get(name, usual)

    @property
    def longest(self) -> int | None:
        """The longest sequence it takes, in tokens; None where positions have no end."""
        return self.embed.positions if isinstance(self.embed, TextConfig) and self.embed.kind != "sinusoidal" else None


class Model(nn.Module):
    """`model(inputs, layout)` gives the encoder's rows; `model.read(head, rows, layout)` what a head makes of them."""

    def __init__(self, config: ModelConfig, trunk: tuple[nn.Module, nn.Module], pooler: nn.Module | None, heads: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.config = config
        self.embed: Any
        self.encoder: Any
        self.embed, self.encoder = trunk
        self.pooler = pooler
        self.heads = nn.ModuleDict(heads)
        self.tie()

    def tie(self) -> None:
        """The word head predicts with the matrix that embeds (Press and Wolf 2017); after a load they are joined again."""
        if self.tied:
            self.heads["words"].decoder.weight = self.embed.words.weight  # type: ignore[union-attr]

    @property
    def tied(self) -> bool:
        return "words" in self.heads and self.config.tied

    def forward(self, inputs: Mapping[str, Tensor], layout: Layout) -> Tensor:
        return self.encoder(self.enter(inputs, layout), inputs.get("positions"), layout)

    def enter(self, inputs: Mapping[str, Tensor], layout: Layout) -> Tensor:
        """What goes into the first layer."""
        if "pixels" in inputs:
            found = self.embed(inputs["pixels"])
            return layout.lay(found) if found.dim() == 3 else found  # a CNN lays its maps once they are rows
        return self.embed(inputs["tokens"], inputs["positions"], inputs.get("segments"))

    def read(self, head: str, rows: Tensor, layout: Layout) -> Tensor:
        """Logits: a row a token, or a row a text, as the head goes."""
        module = self.heads[head]
        if module.over == "pooled":
            assert self.pooler is not None  # families.build gives a model with such a head its pooler
            rows = self.pooler(rows, layout)
        return module(rows, layout)


@torch.no_grad()
def initialise(module: nn.Module, draw: torch.Generator, deviation: float = 0.02) -> None:
    """As BERT's and ViT's papers have it: truncated normal of 0.02, biases zero, norms one."""
    for part in module.modules():
        if isinstance(part, nn.LayerNorm):
            part.reset_parameters()
        elif isinstance(part, nn.Linear | nn.Embedding | nn.Conv2d):
            nn.init.trunc_normal_(part.weight, std=deviation, a=-2 * deviation, b=2 * deviation, generator=draw)
            bias = None if isinstance(part, nn.Embedding) else part.bias
            if bias is not None:
                nn.init.zeros_(bias)
        elif isinstance(part, ImageEmbed):
            for weight in (*part.extra, part.positions):
                nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation, generator=draw)


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
