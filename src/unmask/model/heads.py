"""What stands on top of the encoder, and gives logits.

A head says what it reads: a row a token (`tokens`), what the model's pooler makes of a text (`pooled`), or all rows of a text, of
which it makes one itself (`texts`). It is called with that and the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from unmask.model.encoder import ACTIVATIONS
from unmask.model.layout import Layout

Over = Literal["tokens", "texts", "pooled"]


class Pooler(nn.Module):
    """BERT's: the first token through a dense layer and tanh. It is pretrained with next sentence, so it comes with the model."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.dense(layout.at(x)).tanh()


class Linear(nn.Module):
    """One added layer (Devlin et al. 2018, section 4); over texts it reads the first token as it is (ViT's class token), or the mean of all."""

    def __init__(self, width: int, labels: int, over: Over, dropout: float = 0.0, *, mean: bool = False) -> None:
        super().__init__()
        self.over: Over = over
        self.mean = mean
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(width, labels)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if self.over == "texts":
            x = mean(x, layout) if self.mean else layout.at(x)
        return self.out(self.drop(x))


class Dense(nn.Module):
    """One dense layer more before the one added, as in the heads of RoBERTa, DistilBERT, ELECTRA and ModernBERT.

    Over texts it reads the first token, or the mean of all.
    """

    def __init__(
        self,
        width: int,
        labels: int,
        over: Over,
        activation: str,
        dropout: tuple[float, float] = (0.0, 0.0),  # before the dense layer, and after it
        norm: nn.Module | None = None,
        bias: bool = True,
        mean: bool = False,
    ) -> None:
        super().__init__()
        self.over: Over = over
        self.mean = mean
        self.before, self.after = (nn.Dropout(rate) for rate in dropout)
        self.dense = nn.Linear(width, width, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.norm = norm or nn.Identity()
        self.out = nn.Linear(width, labels)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if self.over == "texts":
            x = mean(x, layout) if self.mean else layout.at(x)
        return self.out(self.after(self.norm(self.activation(self.dense(self.before(x))))))


class Words(nn.Module):
    """Which piece stands here: a dense layer and a norm, then the embedding's own matrix turned round, and a bias."""

    over: Over = "tokens"

    def __init__(self, width: int, inner: int, vocabulary: int, activation: str, epsilon: float, *, bias: bool = True, norm_bias: bool = True) -> None:
        super().__init__()
        self.dense = nn.Linear(width, inner, bias=bias)
        self.activation = ACTIVATIONS[activation]
        self.norm = nn.LayerNorm(inner, eps=epsilon, bias=norm_bias)
        self.decoder = nn.Linear(inner, vocabulary)  # Model.tie makes its weight the embedding's

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.decoder(self.norm(self.activation(self.dense(x))))


def mean(x: Tensor, layout: Layout) -> Tensor:
    """The mean of each sequence's rows."""
    return layout.sum(x) / layout.lengths.to(x.device)[:, None]


POOLINGS = ("cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


def pool(x: Tensor, layout: Layout, modes: Sequence[str], positions: Tensor, skip: int = 0) -> Tensor:
    """One vector a text: each mode's, side by side. `skip` leaves out that many tokens at the start (a prompt's)."""
    x = x.float()
    keep = (positions >= skip).to(x.dtype)[..., None]
    count = (layout.lengths.to(x.device)[:, None] - skip).clamp(min=1).to(x.dtype)
    parts = []
    for mode in modes:
        if mode == "cls":
            parts.append(layout.sum(x * (positions == skip)[..., None]) if skip else layout.at(x))
        elif mode == "lasttoken":
            parts.append(layout.last(x))
        elif mode == "max":
            parts.append(layout.max(x.masked_fill(keep == 0, float("-inf")) if skip else x))
        elif mode == "weightedmean":
            weight = keep * (positions + 1)[..., None]
            parts.append(layout.sum(x * weight) / layout.sum(weight).clamp(min=1))
        else:
            parts.append(layout.sum(x * keep if skip else x) / (count if mode == "mean" else count.sqrt()))
    return torch.cat(parts, -1)
