"""Every layout against one dense reference: a loop over sequences, the softmax written out, the band as a mask, in float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unmask.model.layout import ANTICAUSAL, CAUSAL, FULL, Layout, Packed, Padded, Reach, Recording, local

HEADS, WIDTH = 3, 8
MIXED = (7, 1, 12, 7, 3, 1, 5)  # no neighbours of one length: every group is of one
GROUPED = (12, 7, 7, 7, 3, 1, 1)
REACHES = [FULL, CAUSAL, ANTICAUSAL, local(0), local(1), local(3), (2, 5), (5, 2), (0, 4), (100, 200), (-1, 2), (4, -1)]
some_lengths = st.lists(st.integers(1, 19), min_size=1, max_size=6)
some_reach = st.tuples(st.integers(-1, 22), st.integers(-1, 22))
few = settings(deadline=None, max_examples=25)


@dataclass
class Given:
    """The same sequences as a list and as any layout lays them; what stands in padding is large, so that it would show."""

    lengths: Sequence[int]
    width: int = 0  # of a padded row, where it is more than the longest

    def rows(self, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        draw = torch.Generator().manual_seed(seed)
        return [torch.randn(length, *shape, generator=draw, dtype=torch.float64).to(dtype) for length in self.lengths]

    def padded(self) -> Padded:
        width = self.width or max(self.lengths)
        return Padded(len(self.lengths), width, torch.arange(width)[None] < torch.tensor(self.lengths)[:, None])

    def packed(self) -> Packed:
        return Packed.of(self.lengths)

    def as_padded(self, rows: Sequence[Tensor], filling: float = 1e3) -> Tensor:
        layout = self.padded()
        out = torch.full((layout.batch, layout.width, *rows[0].shape[1:]), filling, dtype=rows[0].dtype)
        for i, row in enumerate(rows):
            out[i, : len(row)] = row
        return out

    def lay(self, layout: Layout, rows: Sequence[Tensor]) -> Tensor:
        return self.as_padded(rows) if isinstance(layout, Padded) else torch.cat(list(rows))


def sees(length: int, reach: Reach) -> Tensor:
    """The band, one pair of tokens after the other."""
    left, right = reach
    seen = torch.zeros(length, length, dtype=torch.bool)
    for i in range(length):
        for j in range(length):
            seen[i, j] = (left < 0 or i - j <= left) and (right < 0 or j - i <= right)
    return seen


def reference(q: Tensor, k: Tensor, v: Tensor, reach: Reach) -> tuple[Tensor, Tensor]:
    """One sequence, (S, N, H) -> the answer and the maps (N, S, S), head by head."""
    seen = sees(len(q), reach)
    answers, maps = [], []
    for head in range(q.shape[1]):
        scores = (q[:, head] @ k[:, head].T / math.sqrt(q.shape[-1])).exp() * seen
        maps.append(scores / scores.sum(-1, keepdim=True))
        answers.append(maps[-1] @ v[:, head])
    return torch.stack(answers, 1), torch.stack(maps)


LAYOUTS: dict[str, Callable[[Given], Layout]] = {"padded": Given.padded, "packed": Given.packed}


def differences(given: Given, layout: Layout, reach: Reach) -> float:
    """The largest difference to the reference, of the answer and of the gradients of q, k and v."""
    rows = [given.rows(HEADS, WIDTH, seed=seed) for seed in (1, 2, 3)]
    back = given.rows(HEADS, WIDTH, seed=4)
    theirs = [[row.clone().requires_grad_() for row in one] for one in rows]
    expected = [reference(*three, reach)[0] for three in zip(*theirs, strict=True)]
    sum((out * grad).sum() for out, grad in zip(expected, back, strict=True)).backward()  # type: ignore[union-attr]
    ours = [given.lay(layout, one).requires_grad_() for one in rows]
    found = layout.tokens(layout.attend(*ours, reach))
    (found * torch.cat(back)).sum().backward()
    pairs = [(found, torch.cat(expected))]
    pairs += [(layout.tokens(our.grad), torch.cat([row.grad for row in their])) for our, their in zip(ours, theirs, strict=True)]  # type: ignore[arg-type]
    return max((one - two).abs().max().item() for one, two in pairs)


@pytest.mark.parametrize("reach", REACHES, ids=str)
@pytest.mark.parametrize("lengths", [MIXED, GROUPED, (1,), (17,), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("kind", LAYOUTS)
def test_attention_and_its_gradients(kind: str, lengths: tuple[int, ...], reach: Reach) -> None:
    given = Given(lengths)
    assert differences(given, LAYOUTS[kind](given), reach) < 1e-12


@few
@given(some_lengths, some_reach, st.integers(0, 9))
def test_attention_of_any_lengths_and_reach(lengths: list[int], reach: Reach, extra: int) -> None:
    given = Given(lengths, width=max(lengths) + extra)
    for layout in (given.padded(), given.packed()):
        assert differences(given, layout, reach) < 1e-12


@pytest.mark.parametrize("reach", [FULL, CAUSAL, local(2)], ids=str)
def test_rows_that_are_all_full_need_no_mask(reach: Reach) -> None:
    given = Given((9, 9, 9))
    assert differences(given, Padded(3, 9), reach) < 1e-12


@few
@given(some_lengths)
def test_groups_cover_every_token_once(lengths: list[int]) -> None:
    layout = Packed.of(lengths)
    assert [length for count, length in layout.groups for _ in range(count)] == lengths
    assert all(one[1] != two[1] for one, two in itertools.pairwise(layout.groups)), "equal neighbours are one call of the kernel"
    assert layout.longest == max(lengths)
    assert layout.lengths.tolist() == lengths
    assert layout.bounds.dtype == torch.int32


def plain_kernel(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0) -> Tensor:
    """As an exported graph has it: torch's own kernels now forgive a row that sees nothing, a plain softmax does not."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return (scores if attn_mask is None else scores.masked_fill(~attn_mask, float("-inf"))).softmax(-1) @ v


@pytest.mark.parametrize("reach", [FULL, CAUSAL, ANTICAUSAL, local(1), (2, 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kernel", [None, plain_kernel], ids=["torch's", "plain"])
def test_padding_never_makes_nan(kernel: Callable[..., Tensor] | None, dtype: torch.dtype, reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    """A padding token further from every real one than its reach sees nothing, and a softmax over nothing is NaN."""
    if kernel is not None:
        monkeypatch.setattr(F, "scaled_dot_product_attention", kernel)
    given = Given((2, 1, 3), width=24)
    layout = given.padded()
    q, k, v = (given.as_padded(given.rows(HEADS, WIDTH, seed=seed, dtype=dtype)).requires_grad_() for seed in (1, 2, 3))
    out = layout.attend(q, k, v, reach)
    out.float().square().sum().backward()  # padding's rows too, as a norm or a dense layer after it would
    for tensor in (out, q.grad, k.grad, v.grad):
        assert tensor is not None
        assert tensor.isfinite().all()


@pytest.mark.parametrize("reach", [FULL, CAUSAL, local(1), (2, 5)], ids=str)
def test_padding_is_never_looked_at(reach: Reach) -> None:
    given = Given((5, 1, 12))
    layout = given.padded()
    three = [given.rows(HEADS, WIDTH, seed=seed) for seed in (1, 2, 3)]
    outs = [layout.tokens(layout.attend(*(given.as_padded(rows, filling) for rows in three), reach)) for filling in (0.0, 1e3)]
    assert torch.equal(*outs)


@pytest.mark.parametrize("reach", [FULL, CAUSAL, local(2)], ids=str)
@pytest.mark.parametrize("lengths", [MIXED, GROUPED], ids=str)
@pytest.mark.parametrize("kind", LAYOUTS)
def test_sequences_never_see_each_other(kind: str, lengths: tuple[int, ...], reach: Reach) -> None:
    """Changing one leaves the others as they are, to the bit."""
    given = Given(lengths)
    layout = LAYOUTS[kind](given)
    three = [given.rows(HEADS, WIDTH, seed=seed, dtype=torch.float32) for seed in (1, 2, 3)]
    before = layout.split(layout.attend(*(given.lay(layout, rows) for rows in three), reach))
    for changed in (0, 2, len(lengths) - 1):
        other = [[row * 5 - 1 if i == changed else row for i, row in enumerate(rows)] for rows in three]
        after = layout.split(layout.attend(*(given.lay(layout, rows) for rows in other), reach))
        assert [torch.equal(one, two) for one, two in zip(before, after, strict=True)] == [i != changed for i in range(len(lengths))]


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_token_sees_its_reach_and_no_further(kind: str) -> None:
    """Read off the gradient: which inputs does one row of the answer hang on?"""
    given = Given((12, 12, 5))
    layout = LAYOUTS[kind](given)
    q, k = (given.lay(layout, given.rows(HEADS, WIDTH, seed=seed)) for seed in (1, 2))
    v = given.lay(layout, given.rows(HEADS, WIDTH, seed=3)).requires_grad_()
    layout.split(layout.attend(q, k, v, (2, 5)))[1][4].sum().backward()
    assert v.grad is not None
    touched = [part.abs().sum((1, 2)).nonzero().flatten().tolist() for part in layout.split(v.grad)]
    assert touched == [[], list(range(2, 10)), []]


@pytest.mark.parametrize("kind", LAYOUTS)
def test_dropout_thins_out_attention(kind: str) -> None:
    given = Given(GROUPED)
    layout = LAYOUTS[kind](given)
    q, k = (given.lay(layout, given.rows(HEADS, WIDTH, seed=seed, dtype=torch.float32)) for seed in (1, 2))
    v = torch.ones_like(q)
    torch.manual_seed(0)
    # Over values of one, the answer is the sum of what is left of the weights: 1 on average, and spread.
    sums = torch.stack([layout.tokens(layout.attend(q, k, v, FULL, 0.25)) for _ in range(100)])
    assert sums.std() > 0.1
    assert abs(sums.mean() - 1) < 0.02


# ---- reducing to one row a sequence


@few
@given(some_lengths, st.integers(0, 5))
def test_reductions_are_those_of_each_sequence(lengths: list[int], extra: int) -> None:
    given = Given(lengths, width=max(lengths) + extra)
    rows = given.rows(4)
    expected = {
        "at": torch.stack([row[0] for row in rows]),
        "last": torch.stack([row[-1] for row in rows]),
        "sum": torch.stack([row.sum(0) for row in rows]),
        "max": torch.stack([row.amax(0) for row in rows]),
        "tokens": torch.cat(rows),
    }
    for layout in (given.padded(), given.packed()):
        x = given.lay(layout, rows)
        for both in (layout, Recording(layout)):
            assert both.lengths.tolist() == lengths
            for name, one in expected.items():
                assert torch.allclose(getattr(both, name)(x), one, rtol=0, atol=1e-12), (type(both).__name__, name)
            assert all(torch.equal(one, two) for one, two in zip(both.split(x), rows, strict=True))
            if min(lengths) > 1:
                assert torch.equal(both.at(x, 1), torch.stack([row[1] for row in rows]))


@pytest.mark.parametrize("name", ["at", "last", "sum", "max"])
def test_gradients_of_reductions(name: str) -> None:
    given = Given(MIXED, width=15)
    back = torch.randn(len(MIXED), 4, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    grads = []
    for layout in (given.padded(), given.packed()):
        x = given.lay(layout, given.rows(4)).requires_grad_()
        (getattr(layout, name)(x) * back).sum().backward()
        assert x.grad is not None
        assert x.grad.isfinite().all()
        grads.append(layout.tokens(x.grad))
    assert grads[0].abs().sum() > 0
    assert (grads[0] - grads[1]).abs().max() < 1e-12


def test_full_rows_reduce_without_a_mask() -> None:
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    bare, masked = Padded(3, 5), Padded(3, 5, torch.ones(3, 5, dtype=torch.bool))
    assert bare.lengths.tolist() == [5, 5, 5]
    for name in ("at", "last", "sum", "max", "tokens"):
        assert torch.equal(getattr(bare, name)(x), getattr(masked, name)(x)), name


@pytest.mark.parametrize("layout", [Padded(3, 5), Packed.of([5, 5, 5]), Recording(Packed.of([5, 5, 5]))], ids=lambda layout: type(layout).__name__)
def test_lay_and_tokens_are_inverse_on_full_sequences(layout: Layout) -> None:
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    laid = layout.lay(x)
    assert torch.equal(layout.tokens(laid), x.flatten(0, 1))
    assert torch.equal(torch.stack(layout.split(laid)), x)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_moving_keeps_everything(kind: str) -> None:
    given = Given(MIXED)
    layout = LAYOUTS[kind](given)
    x = given.lay(layout, given.rows(4))
    moved = Recording(layout).to("cpu")
    assert moved.lengths.tolist() == list(MIXED)
    assert torch.equal(moved.sum(x), layout.sum(x))


# ---- recording


@pytest.mark.parametrize("reach", [FULL, CAUSAL, ANTICAUSAL, local(2), (2, 5), (100, 100)], ids=str)
@pytest.mark.parametrize("kind", LAYOUTS)
def test_recorded_maps(kind: str, reach: Reach) -> None:
    """The answer is not touched by a bit; the maps are the reference's, each row sums to 1, nothing lies outside the reach."""
    given = Given(MIXED)
    layout = LAYOUTS[kind](given)
    three = [given.rows(HEADS, WIDTH, seed=seed, dtype=torch.float32) for seed in (1, 2, 3)]
    laid = [given.lay(layout, rows) for rows in three]
    recording = Recording(layout)
    assert torch.equal(layout.tokens(layout.attend(*laid, reach)), recording.tokens(recording.attend(*laid, reach)))
    recording.attend(*laid, FULL)
    assert len(recording.maps) == 2, "one entry a call, in order"
    for maps, q, k, v in zip(recording.maps[0], *three, strict=True):
        assert maps.shape == (HEADS, len(q), len(q))
        assert (maps.sum(-1) - 1).abs().max() < 1e-6
        assert maps.masked_select(~sees(len(q), reach)).eq(0).all()
        assert (maps - reference(q.double(), k.double(), v.double(), reach)[1]).abs().max() < 1e-6


def test_recorded_maps_are_float32_whatever_the_model_is() -> None:
    layout = Recording(Packed.of([4, 2]))
    q = torch.randn(6, HEADS, WIDTH, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert layout.attend(q, q, q).dtype == torch.bfloat16
    assert {maps.dtype for maps in layout.maps[0]} == {torch.float32}
