"""The encoder: a stack of self-attention blocks that reads a sequence in every direction its reach allows.

It takes (T, D) packed or (B, S, D) padded alike: only attention looks at more than one token, and it asks the layout.
Letters: T tokens (or B, S), D width, N heads, H = D / N, F the feed-forward's inner width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.model.kernels import activated, added_norm, added_norm_for_two, linear, split
from unmask.model.layout import FULL, Layout, Reach

Activation = Callable[[Tensor], Tensor]


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Activation] = {  # by the names that config.json gives them
    "gelu": F.gelu,
    "gelu_new": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class EncoderConfig:
    """The shape of an encoder. What differs from layer to layer is a tuple that the layers take in turn, over and over."""

    width: int
    depth: int
    heads: int
    hidden: int
    norm: Literal["post", "pre"] = "post"  # where the norm stands: after the sum (BERT), or before each half (ViT)
    epsilon: float = 1e-12
    activation: str = "gelu"
    gated: bool = False  # GeGLU: half of the inner layer opens or shuts the other half
    rotary: tuple[float, ...] = ()  # base of the rotary positions; empty: positions come with the embedding
    reach: tuple[Reach, ...] = (FULL,)
    distinct: int = 0  # how many layers have weights of their own, shared by their neighbours (ALBERT); 0: every one
    attention_bias: bool = True
    output_bias: bool = True
    feed_bias: bool = True
    norm_bias: bool = True
    first_norm: bool = True  # pre-norm only: false where the embedding's own norm serves the first attention (ModernBERT)
    query_key_norm: bool = False
    attention_gate: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.heads < 1 or self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of {self.heads} heads")
        if self.rotary and self.width // self.heads % 2:
            raise ValueError(f"rotary positions turn pairs, but width {self.width} over {self.heads} heads leaves an odd {self.width // self.heads} for each")
        if self.distinct > self.depth:
            raise ValueError(f"{self.distinct} layers with weights of their own are more than the depth of {self.depth}")
        if self.distinct and not self.first_norm:
            raise ValueError(f"{self.distinct} shared layers cannot leave out the norm of the first one alone")
        if self.norm not in ("post", "pre"):
            raise ValueError(f"norm {self.norm!r} is neither post nor pre")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation {self.activation!r} is none of {', '.join(ACTIVATIONS)}")

    @property
    def layers(self) -> int:
        """How many have weights of their own."""
        return self.distinct or self.depth

    def __str__(self) -> str:
        shared = f" ({self.layers} with weights of their own)" if self.distinct else ""
        return f"{self.depth} layers{shared}, width {self.width}, {self.heads} heads, inner {self.hidden}, {self.norm}-norm"


class Rotary(nn.Module):
    """Rotary positions (Su et al. 2021): turn each pair of a head's numbers by an angle that grows with the position."""

    def __init__(self, base: float, width: int) -> None:
        super().__init__()
        self.base, self.width = base, width

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(T,) -> cosines and sines, (T, 1, H). Always in float32: at position 500 bf16 is off by whole radians."""
        pair = torch.arange(0, self.width, 2, dtype=torch.float32, device=positions.device)
        angle = positions[..., None].float() * self.base ** -(pair / self.width)
        angle = torch.cat([angle, angle], -1)[..., None, :]
        return angle.cos(), angle.sin()


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = turn
    one, two = x.chunk(2, -1)
    return (x * cos + torch.cat([-two, one], -1) * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.attention_bias)
        self.out = nn.Linear(config.width, config.width, bias=config.output_bias)
        self.gate = nn.Linear(config.width, config.width) if config.attention_gate else None

    def forward(self, x: Tensor, layout: Layout, reach: Reach, turn: tuple[Tensor, Tensor] | None) -> Tensor:
        q, k, v = split(self.qkv, x, self.config.heads, turned=turn is not None or self.config.query_key_norm)  # (T, N, H) each
        if self.config.query_key_norm:
            q, k = (F.rms_norm(t, t.shape[-1:]) for t in (q, k))
        if turn is not None:
            q, k = rotate(q, turn), rotate(k, turn)
        mixed = layout.attend(q, k, v, reach, self.config.attention_dropout if self.training else 0.0).flatten(-2)
        if self.gate is not None:
            mixed = mixed * linear(self.gate, x).sigmoid()
        return linear(self.out, mixed)


class FeedForward(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.gated, self.exact = config.gated, config.activation == "gelu"
        self.activation = ACTIVATIONS[config.activation]
        self.up = nn.Linear(config.width, config.hidden * (2 if config.gated else 1), bias=config.feed_bias)
        self.down = nn.Linear(config.hidden, config.width, bias=config.feed_bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.exact and not self.gated:
            return linear(self.down, activated(self.up, x))
        inner = linear(self.up, x)
        if self.gated:
            inner, gate = inner.chunk(2, -1)
            return linear(self.down, self.activation(inner) * gate)
        return linear(self.down, self.activation(inner))


class Layer(nn.Module):
    """Attention, then a feed-forward, each added to what came in."""

    def __init__(self, config: EncoderConfig, *, first: bool = False) -> None:
        super().__init__()
        self.post = config.norm == "post"
        self.attention = Attention(config)
        self.feed = FeedForward(config)
        bare = first and not self.post and not config.first_norm
        self.attention_norm = nn.Identity() if bare else layer_norm(config)
        self.feed_norm = layer_norm(config)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, layout: Layout, reach: Reach, turn: tuple[Tensor, Tensor] | None) -> Tensor:
        if self.post:
            x, beside = added_norm_for_two(self.attention_norm, x, self.drop(self.attention(x, layout, reach, turn)))
            return added_norm(self.feed_norm, beside, self.drop(self.feed(x)))
        x = x + self.drop(self.attention(self.attention_norm(x), layout, reach, turn))
        return x + self.drop(self.feed(self.feed_norm(x)))


class Encoder(nn.Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(Layer(config, first=i == 0) for i in range(config.layers))
        self.norm = layer_norm(config) if config.norm == "pre" else nn.Identity()
        self.rotary = nn.ModuleList(Rotary(base, config.width // config.heads) for base in config.rotary)

    def forward(self, x: Tensor, positions: Tensor | None, layout: Layout) -> Tensor:
        for state in self.states(x, positions, layout):
            x = state
        return x

    def states(self, x: Tensor, positions: Tensor | None, layout: Layout) -> Iterator[Tensor]:
        """What enters the first layer, and what leaves each one; the last has been through the final norm."""
        config = self.config
        turns = [rotary(positions) for rotary in self.rotary]
        yield x
        for i in range(config.depth):
            layer = self.layers[i * len(self.layers) // config.depth]
            x = layer(x, layout, config.reach[i % len(config.reach)], turns[i % len(turns)] if turns else None)
            yield x if i + 1 < config.depth else self.norm(x)


def layer_norm(config: EncoderConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.width, eps=config.epsilon, bias=config.norm_bias)
