"""What goes into the encoder: words or patches, each with its position.

Letters: T tokens packed (or B, S padded), B images of C channels, P the side of a patch, D width, E width of the embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class TextConfig:
    vocabulary: int
    positions: int = 512  # the longest sequence
    segments: int = 2  # 0: none
    kind: Literal["learned", "sinusoidal", "none"] = "learned"
    first: int = 0  # the row of the first position (RoBERTa: 2)
    width: int = 0  # width of the embedding where a layer brings it to the encoder's (ALBERT, ELECTRA)
    norm: bool = True
    norm_bias: bool = True
    epsilon: float = 1e-12
    dropout: float = 0.0
    padding: int = 0  # the id of [PAD]


@dataclass(frozen=True)
class ImageConfig:
    size: tuple[int, int] = (224, 224)  # height, width
    patch: int = 16
    channels: int = 3
    extra: int = 1  # tokens before the patches: the class token (and DeiT's distillation token); 0: none, as in a CNN
    dropout: float = 0.0
    partial: bool = False  # whether a last patch may stand over the edge, as a CNN's may

    def __post_init__(self) -> None:
        if min(self.size) <= 0 or not self.takes(self.size):
            raise ValueError(f"patches of {self.patch} do not divide an image of {self.size[0]} x {self.size[1]}")

    def takes(self, size: tuple[int, int]) -> bool:
        return self.partial or not any(side % self.patch for side in size)

    @property
    def grid(self) -> tuple[int, int]:
        return self.grid_of(self.size)

    def grid_of(self, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of patches in a picture of that size."""
        return -(-size[0] // self.patch), -(-size[1] // self.patch)

    def tokens(self, size: tuple[int, int]) -> int:
        rows, columns = self.grid_of(size)
        return self.extra + rows * columns


class TextEmbed(nn.Module):
    """Token + position + segment (Devlin et al. 2018, section 3), a norm over the sum."""

    def __init__(self, config: TextConfig, width: int) -> None:
        super().__init__()
        self.config = config
        inner = config.width or width
        self.words = table(config.vocabulary, inner)
        self.positions = table(config.positions + config.first, inner) if config.kind == "learned" else None
        self.segments = table(config.segments, inner) if config.segments else None
        self.norm = nn.LayerNorm(inner, eps=config.epsilon, bias=config.norm_bias) if config.norm else nn.Identity()
        self.drop = nn.Dropout(config.dropout)
        self.project = nn.Linear(inner, width) if config.width else nn.Identity()

    def forward(self, tokens: Tensor, positions: Tensor, segments: Tensor | None = None) -> Tensor:
        x: Tensor = self.words(tokens)
        if self.segments is not None:
            x = x + (self.segments.weight[0] if segments is None else self.segments(segments))
        if self.positions is not None:
            first = self.config.first
            x = x + self.positions(self._rows(tokens, positions) if first == self.config.padding + 1 else positions + first)
        elif self.config.kind == "sinusoidal":
            x = x + sinusoids(positions, x.shape[-1]).to(x.dtype)
        return self.project(self.drop(self.norm(x)))

    def _rows(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Rows of the positions, counted on from the padding's id: a [PAD] typed in a text has that id's own row and is not counted."""
        padding, numbers = (tokens == self.config.padding).flatten().long(), positions.flatten()
        before = padding.cumsum(0) - padding
        starts = (torch.arange(len(numbers), device=numbers.device) - numbers).clamp(min=0)
        counted = numbers - (before - before[starts])
        return torch.where(padding.bool(), -1, counted).add(self.config.first).view_as(positions)


def table(rows: int, width: int) -> nn.Embedding:
    """Not yet filled: nn.Embedding's own start draws normal numbers, and on the meta device that imports all of torch.compile (1.1 s)."""
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


class ImageEmbed(nn.Module):
    """Patches through one linear layer, the class token before them, learned positions (Dosovitskiy et al. 2020, eq. 1)."""

    def __init__(self, config: ImageConfig, width: int) -> None:
        super().__init__()
        self.config = config
        count = config.grid[0] * config.grid[1]
        self.project = nn.Conv2d(config.channels, width, config.patch, config.patch)
        self.extra = nn.ParameterList(nn.Parameter(torch.zeros(1, 1, width)) for _ in range(config.extra))
        self.positions = nn.Parameter(torch.zeros(1, config.extra + count, width))
        self.drop = nn.Dropout(config.dropout)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, C, height, width) -> (B, extra + patches, D); another size than the trained one has its positions resampled."""
        side = self.config.patch
        grid = pixels.shape[2] // side, pixels.shape[3] // side
        # (B, C, rows, P, columns, P) -> (B, rows * columns, C * P * P): the convolution, as the matrix product it is
        patches = pixels.unflatten(2, (grid[0], side)).unflatten(4, (grid[1], side))
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        x = F.linear(patches, self.project.weight.flatten(1), self.project.bias)
        extra = [token.expand(len(x), -1, -1) for token in self.extra]
        return self.drop(torch.cat([*extra, x], 1) + self.positions_for(grid))

    def positions_for(self, grid: tuple[int, int]) -> Tensor:
        if grid == self.config.grid:
            return self.positions
        extra = self.config.extra
        return torch.cat([self.positions[:, :extra], resample(self.positions[:, extra:], self.config.grid, grid)], 1)


def resample(positions: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """(1, rows * columns, D) on the old grid -> on the new one, bicubic."""
    square = positions.unflatten(1, old).permute(0, 3, 1, 2)
    return F.interpolate(square, new, mode="bicubic", align_corners=False).permute(0, 2, 3, 1).flatten(1, 2)


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Fixed positions (Vaswani et al. 2017, section 3.5): (T,) -> (T, D), sines in the even columns, cosines in the odd."""
    pair = torch.arange(0, width, 2, dtype=torch.float32, device=positions.device)
    angle = positions[..., None].float() * 10_000.0 ** -(pair / width)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., :width]
