"""Attention maps made to be looked at: which head is worth a look, and a drawing in characters."""

from __future__ import annotations

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from unmask.infer.predictor import Maps

SHADES = " ░▒▓█"


def sharpest(maps: Maps, row: int) -> tuple[int, int]:
    """The layer and head in which one piece looks most at a single other one that is neither special nor itself."""
    weights = maps.weights[:, :, row].copy()
    shut = [i for i in range(len(maps.pieces)) if maps.special[i] or abs(i - row) <= 1]
    weights[:, :, shut] = 0
    layer, head = divmod(int(np.argmax(weights.max(-1))), weights.shape[1])
    return layer, head


def draw(maps: Maps, layer: int, head: int) -> Text:
    """A row a piece, a column a piece, the darker the more the row looks at the column."""
    weights = maps.weights[layer, head]
    width = max(cell_len(piece) for piece in maps.pieces)
    wide = [max(2, cell_len(piece)) for piece in maps.pieces]
    drawn = Text(" " * (width + 2) + " ".join(_fit(piece, size) for piece, size in zip(maps.pieces, wide, strict=True)) + "\n", style="dim")
    for piece, row in zip(maps.pieces, weights, strict=True):
        cells = (SHADES[min(len(SHADES) - 1, round(float(x) * len(SHADES)))] * size for x, size in zip(row, wide, strict=True))
        drawn.append(_fit(piece, width) + "  ").append(" ".join(cells) + "\n", style="cyan")
    return drawn


def _fit(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))
