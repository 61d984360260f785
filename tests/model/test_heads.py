"""What stands on the encoder, against a loop over the sequences."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unmask.model.heads import POOLINGS, Linear, Pooler, Words, pool
from unmask.model.layout import Layout, Packed, Padded

WIDTH = 6
LENGTHS = (7, 3, 12, 3, 3, 5)


def by_hand(row: Tensor, mode: str, skip: int) -> Tensor:
    """One sequence, (S, D), token after token."""
    kept = [row[i] for i in range(skip, len(row))]
    if mode == "cls":
        return kept[0]
    if mode == "lasttoken":
        return kept[-1]
    if mode == "max":
        return torch.stack([max((one[d] for one in kept), key=float) for d in range(row.shape[1])])
    if mode == "weightedmean":  # a token weighs as much as its place in the whole text, from 1
        places = range(skip + 1, len(row) + 1)
        return sum((place * one for place, one in zip(places, kept, strict=True)), torch.zeros(row.shape[1])) / sum(places)
    total = sum(kept, torch.zeros(row.shape[1]))
    return total / {"mean": len(kept), "mean_sqrt_len_tokens": math.sqrt(len(kept))}[mode]


def made(lengths: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(length, WIDTH, generator=draw) - 2 for length in lengths]  # below zero: a maximum with a zero would show


def packed(rows: list[Tensor]) -> tuple[Tensor, Layout, Tensor]:
    return torch.cat(rows), Packed.of([len(row) for row in rows]), torch.cat([torch.arange(len(row)) for row in rows])


def padded(rows: list[Tensor]) -> tuple[Tensor, Layout, Tensor]:
    width = max(map(len, rows)) + 3
    x = torch.full((len(rows), width, WIDTH), 50.0)
    for i, row in enumerate(rows):
        x[i, : len(row)] = row
    mask = torch.arange(width)[None] < torch.tensor([len(row) for row in rows])[:, None]
    return x, Padded(len(rows), width, mask), torch.arange(width).expand(len(rows), -1)


@pytest.mark.parametrize("lay", [packed, padded])
@pytest.mark.parametrize("skip", [0, 1, 2])
@pytest.mark.parametrize("mode", POOLINGS)
def test_every_pooling_is_the_loops(mode: str, skip: int, lay: object) -> None:
    rows = made(LENGTHS)
    x, layout, positions = lay(rows)  # type: ignore[operator]
    expected = torch.stack([by_hand(row, mode, skip) for row in rows])
    assert (pool(x, layout, [mode], positions, skip) - expected).abs().max() < 1e-5


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 15), min_size=1, max_size=6), st.data())
def test_poolings_of_any_lengths(lengths: list[int], data: st.DataObject) -> None:
    skip = data.draw(st.integers(0, min(lengths) - 1))
    modes = data.draw(st.lists(st.sampled_from(POOLINGS), min_size=1, max_size=4, unique=True))
    rows = made(tuple(lengths))
    expected = torch.stack([torch.cat([by_hand(row, mode, skip) for mode in modes]) for row in rows])
    for lay in (packed, padded):
        x, layout, positions = lay(rows)
        assert (pool(x, layout, modes, positions, skip) - expected).abs().max() < 1e-4


@pytest.mark.parametrize("lay", [packed, padded])
@pytest.mark.parametrize("mode", [mode for mode in POOLINGS if mode != "max"])
def test_a_text_that_is_all_prompt_is_no_nan(mode: str, lay: object) -> None:
    """A prompt as long as the window leaves nothing to pool; sentence-transformers divides by no less than 1e-9."""
    x, layout, positions = lay(made((3, 8)))  # type: ignore[operator]
    assert pool(x, layout, [mode], positions, 3).isfinite().all()


def test_modes_stand_side_by_side_in_the_order_asked() -> None:
    x, layout, positions = packed(made(LENGTHS))
    both = pool(x, layout, ["max", "cls"], positions)
    assert torch.equal(both, torch.cat([pool(x, layout, [mode], positions) for mode in ("max", "cls")], -1))
    assert both.shape == (len(LENGTHS), 2 * WIDTH)


@pytest.mark.parametrize("mode", POOLINGS)
def test_pooling_is_computed_in_float32(mode: str) -> None:
    x, layout, positions = packed(made((300,)))
    found = pool(x.bfloat16(), layout, [mode], positions)
    assert found.dtype == torch.float32
    assert (found - pool(x.bfloat16().float(), layout, [mode], positions)).abs().max() < 1e-6


@pytest.mark.parametrize("lay", [packed, padded])
def test_pooler(lay: object) -> None:
    rows = made(LENGTHS)
    x, layout, _ = lay(rows)  # type: ignore[operator]
    pooler = Pooler(WIDTH)
    firsts = torch.stack([row[0] for row in rows])
    assert (pooler(x, layout) - torch.tanh(firsts @ pooler.dense.weight.T + pooler.dense.bias)).abs().max() < 1e-6


@torch.no_grad()
@pytest.mark.parametrize("lay", [packed, padded])
def test_linear_reads_what_it_says_and_drops_in_training_only(lay: object) -> None:
    rows = made(LENGTHS)
    x, layout, _ = lay(rows)  # type: ignore[operator]
    firsts = torch.stack([row[0] for row in rows])
    for over, put, read in (("texts", x, firsts), ("pooled", firsts, firsts), ("tokens", x, x)):
        head = Linear(WIDTH, 4, over, dropout=1.0)  # type: ignore[arg-type]
        assert (head.eval()(put, layout) - (read @ head.out.weight.T + head.out.bias)).abs().max() < 1e-6
        assert torch.equal(head.train()(put, layout), head.out.bias.expand(*read.shape[:-1], 4))


@torch.no_grad()
def test_words_head_by_hand() -> None:
    """Devlin et al.'s own code: dense, activation, norm, the matrix, a bias."""
    head, x = Words(WIDTH, 4, 11, "gelu", 1e-12), torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(0))
    torch.nn.init.normal_(head.norm.weight, generator=torch.Generator().manual_seed(1))
    torch.nn.init.normal_(head.norm.bias, generator=torch.Generator().manual_seed(2))
    inner = x @ head.dense.weight.T + head.dense.bias
    inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
    inner = (inner - inner.mean(-1, keepdim=True)) / inner.var(-1, keepdim=True, unbiased=False).sqrt() * head.norm.weight + head.norm.bias
    assert (head(x, Padded(1, 5)) - (inner @ head.decoder.weight.T + head.decoder.bias)).abs().max() < 1e-4
    assert head.over == "tokens"
