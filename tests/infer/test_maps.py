"""Attention drawn in characters."""

from __future__ import annotations

import numpy as np

from unmask.infer.maps import draw, sharpest
from unmask.infer.predictor import Maps

PIECES = ("[CLS]", "고양이", "sat", "on", "it", "[SEP]")


def made() -> Maps:
    weights = np.full((2, 3, 6, 6), 1 / 6, np.float32)
    weights[1, 2, 4] = (0.05, 0.8, 0.05, 0.05, 0.03, 0.02)  # layer 2, head 3: `it` looks at 고양이
    weights[0, 1, 4] = (0.99, 0.002, 0.002, 0.002, 0.002, 0.002)  # at [CLS], which is no news
    weights[0, 0, 4] = (0.0, 0.0, 0.0, 0.95, 0.05, 0.0)  # at its neighbour, neither
    return Maps(PIECES, tuple(piece.startswith("[") for piece in PIECES), weights)


def test_the_sharpest_head_looks_at_another_word() -> None:
    assert sharpest(made(), PIECES.index("it")) == (1, 2)


def test_a_row_is_dark_where_it_looks() -> None:
    lines = draw(made(), 1, 2).plain.splitlines()
    assert len(lines) == 7
    assert lines[0].split() == list(PIECES)
    row = next(line for line in lines if line.startswith("it"))
    assert row[8:].startswith("      ██████"), "고양이 is six cells wide, after the five of [CLS]"
    assert row.count("█") == 6


def test_rows_are_as_wide_as_the_letters_on_a_terminal() -> None:
    from rich.cells import cell_len

    assert len({cell_len(line) for line in draw(made(), 0, 0).plain.splitlines()}) == 1
