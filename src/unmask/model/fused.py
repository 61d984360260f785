"""Kernels of our own for what a layer does between its matrix products on a GPU, in half precision. Only `kernels` asks for them.

torch's compiler makes these passes too, but reads more: the gradient of a bias is one more pass over everything there, and so are those of a norm's
scale and shift. Here the pass that writes a gradient also adds up its columns: each program keeps its sums, and a last small kernel adds up the
programs' in one order, so that the same numbers give the same bits. All is computed in float32 and rounded once.

The operators are opaque to torch's compiler (`custom_op`), the matrix products between them are not. Letters: T tokens, D columns.
"""

# ruff: noqa: N803  what a kernel is compiled for stands in capitals
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-call"

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")  # on a CPU, for tests
WIDEST = 8192  # a norm's rows that fit into registers

# How each kernel is cut up; bench/kernels.py tries others. Loads are of 16 bytes: a warp reads 256 columns of a row at once.
LAUNCH: dict[str, tuple[int, ...]] = {
    "gelu": (4096, 8),  # numbers a program, warps
    "gelu_backward": (256, 8, 256, 4),  # rows a program, rows and columns of a tile, warps
    "norm": (2, 1),  # rows a program, warps for every 1024 columns
    "norm_backward": (1, 2, 256),  # rows of a tile, warps for every 1024 columns, numbers that the warps of a processor hold in a lane
    "stack": (128, 8, 256, 4),  # as of gelu_backward
}


@triton.jit
def _reciprocal(x):  # type: ignore[no-untyped-def]
    if INTERPRETED:
        return 1.0 / x
    else:  # noqa: RET505  Triton leaves out the branch that is not taken. One instruction instead of five, as x is between 1 and 20, or infinite
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _tail(x):  # type: ignore[no-untyped-def]
    """What of a normal distribution lies beyond |x|, to 1e-7 (Abramowitz and Stegun 26.2.17), and exp(-x^2 / 2)."""
    t = _reciprocal(1.0 + 0.2316419 * tl.abs(x))
    bell = tl.exp2(x * x * -0.7213475204444817)
    series = 0.5307027145 * t - 0.7265760135
    series = series * t + 0.7107068705
    series = series * t - 0.1422483683
    series = series * t + 0.1274147960
    return series * t * bell, bell


@triton.jit
def _gelu(pre, out, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    start = tl.program_id(0).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    inside = at < count - start
    x = tl.load(pre + start + at, mask=inside, other=0.0).to(tl.float32)
    tail, _ = _tail(x)
    y = tl.maximum(x, 0.0) - tl.abs(x) * tail
    tl.store(out + start + at, y.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _gelu_backward(grad, pre, given, sums, rows, D: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    column = tl.program_id(0) * C + tl.arange(0, C)
    first = tl.program_id(1) * ROWS
    total = tl.zeros([R, C], tl.float32)
    for more in range(0, ROWS, R):
        row = first + more + tl.arange(0, R)
        inside = (row < rows)[:, None] & (column < D)[None, :]
        at = row.to(tl.int64)[:, None] * D + column[None, :]
        g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(pre + at, mask=inside, other=0.0).to(tl.float32)
        tail, bell = _tail(x)
        g *= tl.where(x > 0, 1.0 - tail, tail) + x * 0.3989422804014327 * bell
        tl.store(given + at, g.to(given.dtype.element_ty), mask=inside)
        total += g
    tl.store(sums + tl.program_id(1).to(tl.int64) * D + column, tl.sum(total, 0), mask=column < D)


@triton.jit(do_not_specialize=["rows"])
def _norm(x, branch, weight, bias, out, mean, scale, rows, epsilon, D: tl.constexpr, BLOCK: tl.constexpr, R: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0) * R + tl.arange(0, R)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < D)[None, :]
    at = row.to(tl.int64)[:, None] * D + column[None, :]
    s = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + tl.load(branch + at, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + column, mask=column < D, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=column < D, other=0.0).to(tl.float32)
    middle = tl.sum(s, 1) * (1.0 / D)
    s = tl.where((column < D)[None, :], s - middle[:, None], 0.0)
    r = tl.rsqrt(tl.sum(s * s, 1) * (1.0 / D) + epsilon)
    tl.store(out + at, (s * r[:, None] * w[None, :] + b[None, :]).to(out.dtype.element_ty), mask=inside)
    tl.store(mean + row, middle, mask=row < rows)
    tl.store(scale + row, r, mask=row < rows)


@triton.jit(do_not_specialize=["rows"])
def _norm_backward(  # type: ignore[no-untyped-def]
    grad, other, x, branch, weight, mean, scale, given, sums, rows, D: tl.constexpr, BLOCK: tl.constexpr, R: tl.constexpr, TWO: tl.constexpr
):
    column = tl.arange(0, BLOCK)
    w = tl.load(weight + column, mask=column < D, other=0.0).to(tl.float32)
    of_weight = tl.zeros([BLOCK], tl.float32)
    of_bias = tl.zeros([BLOCK], tl.float32)
    for first in range(tl.program_id(0) * R, rows, tl.num_programs(0) * R):
        row = first + tl.arange(0, R)
        inside = (row < rows)[:, None] & (column < D)[None, :]
        at = row.to(tl.int64)[:, None] * D + column[None, :]
        g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + tl.load(branch + at, mask=inside, other=0.0).to(tl.float32)
        if TWO:
            g += tl.load(other + at, mask=inside, other=0.0).to(tl.float32)
        middle = tl.load(mean + row, mask=row < rows, other=0.0)
        r = tl.load(scale + row, mask=row < rows, other=0.0)
        s = (s - middle[:, None]) * r[:, None]  # beyond D not zero, but every product of it is: g is zero there
        of_weight += tl.sum(g * s, 0)
        of_bias += tl.sum(g, 0)
        g *= w[None, :]
        along = tl.sum(g * s, 1) * (1.0 / D)
        level = tl.sum(g, 1) * (1.0 / D)
        tl.store(given + at, ((g - s * along[:, None] - level[:, None]) * r[:, None]).to(given.dtype.element_ty), mask=inside)
    place = sums + tl.program_id(0).to(tl.int64) * (2 * D) + column
    tl.store(place, of_weight, mask=column < D)
    tl.store(place + D, of_bias, mask=column < D)


@triton.jit(do_not_specialize=["rows"])
def _stack(q, k, v, out, sums, rows, step_q, step_k, step_v, D: tl.constexpr, ROWS: tl.constexpr, R: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    column = tl.program_id(0) * C + tl.arange(0, C)
    first = tl.program_id(1) * ROWS
    total_q = tl.zeros([R, C], tl.float32)
    total_k = tl.zeros([R, C], tl.float32)
    total_v = tl.zeros([R, C], tl.float32)
    for more in range(0, ROWS, R):
        row = (first + more + tl.arange(0, R)).to(tl.int64)[:, None]
        inside = (row < rows) & (column < D)[None, :]
        one = tl.load(q + row * step_q + column[None, :], mask=inside, other=0.0)
        two = tl.load(k + row * step_k + column[None, :], mask=inside, other=0.0)
        three = tl.load(v + row * step_v + column[None, :], mask=inside, other=0.0)
        to = out + row * (3 * D) + column[None, :]
        tl.store(to, one, mask=inside)
        tl.store(to + D, two, mask=inside)
        tl.store(to + 2 * D, three, mask=inside)
        total_q += one.to(tl.float32)
        total_k += two.to(tl.float32)
        total_v += three.to(tl.float32)
    place = sums + tl.program_id(1).to(tl.int64) * (3 * D) + column
    tl.store(place, tl.sum(total_q, 0), mask=column < D)
    tl.store(place + D, tl.sum(total_k, 0), mask=column < D)
    tl.store(place + 2 * D, tl.sum(total_v, 0), mask=column < D)


@triton.jit(do_not_specialize=["count"])
def _add_up(sums, out, count, D: tl.constexpr, R: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    column = tl.program_id(0) * C + tl.arange(0, C)
    total = tl.zeros([R, C], tl.float32)
    for first in range(0, count, R):
        row = first + tl.arange(0, R)
        total += tl.load(sums + row[:, None] * D + column[None, :], mask=(row < count)[:, None] & (column < D)[None, :], other=0.0)
    tl.store(out + column, tl.sum(total, 0).to(out.dtype.element_ty), mask=column < D)


def _on(x: Tensor) -> AbstractContextManager[object]:
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def _added_up(sums: Tensor, dtype: torch.dtype) -> Tensor:
    """(programs, D) -> (D,)."""
    out = torch.empty(sums.shape[1], dtype=dtype, device=sums.device)
    _add_up[(triton.cdiv(sums.shape[1], 16),)](sums, out, sums.shape[0], sums.shape[1], 512, 16, num_warps=8)
    return out


@custom_op("unmask::gelu", mutates_args=())
def gelu(pre: Tensor) -> Tensor:
    block, warps = LAUNCH["gelu"]
    out = torch.empty_like(pre)
    with _on(pre):
        _gelu[(triton.cdiv(pre.numel(), block),)](pre, out, pre.numel(), block, num_warps=warps)
    return out


@gelu.register_fake
def _(pre: Tensor) -> Tensor:
    return torch.empty_like(pre)


@custom_op("unmask::gelu_backward", mutates_args=())
def gelu_backward(grad: Tensor, pre: Tensor) -> tuple[Tensor, Tensor]:
    """(T, D) of each -> the gradient before the GELU, and the sums of its columns."""
    rows, width = pre.shape
    share, high, wide, warps = LAUNCH["gelu_backward"]
    grad = grad.contiguous()
    given = torch.empty_like(pre)
    programs = triton.cdiv(rows, share)
    sums = torch.empty(programs, width, dtype=torch.float32, device=pre.device)
    with _on(pre):
        _gelu_backward[(triton.cdiv(width, wide), programs)](grad, pre, given, sums, rows, width, share, high, wide, num_warps=warps)
        return given, _added_up(sums, pre.dtype)


@gelu_backward.register_fake
def _(grad: Tensor, pre: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(pre), pre.new_empty(pre.shape[1])


def _wide(width: int, warps: int) -> tuple[int, int]:
    """The power of two that holds a row, and how many warps: never more than lie along a row, so that sums over rows stay in a thread."""
    block = max(triton.next_power_of_2(width), 16)
    return block, max(1, min(warps * block // 1024, block // 256, 16))


@custom_op("unmask::added_norm", mutates_args=())
def added_norm(x: Tensor, branch: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """(T, D) -> the norm of the sum, and of each row its mean and one over its deviation."""
    rows, width = x.shape
    high, warps = LAUNCH["norm"]
    block, warps = _wide(width, warps)
    branch = branch.contiguous()
    out = torch.empty_like(x)
    mean, scale = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
    with _on(x):
        _norm[(triton.cdiv(rows, high),)](x, branch, weight, bias, out, mean, scale, rows, epsilon, width, block, high, num_warps=warps)
    return out, mean, scale


@added_norm.register_fake
def _(x: Tensor, branch: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    mean, scale = (x.new_empty(x.shape[0], dtype=torch.float32) for _ in range(2))
    return torch.empty_like(x), mean, scale


@custom_op("unmask::added_norm_backward", mutates_args=())
def added_norm_backward(grad: Tensor, other: Tensor | None, x: Tensor, branch: Tensor, weight: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Of the sum, and of weight and bias (2, D), from the gradient of the norm; `other` is more of it, from a second place that reads the norm."""
    rows, width = x.shape
    high, warps, held = LAUNCH["norm_backward"]
    block, warps = _wide(width, warps)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 2
    programs = min(triton.cdiv(rows, high), processors * max(1, held // (8 * high * triton.cdiv(width, 256 * warps)) // warps))  # all that run at once
    grad, branch = grad.contiguous(), branch.contiguous()
    second = grad if other is None else other.contiguous()
    given = torch.empty_like(x)
    sums = torch.empty(programs, 2 * width, dtype=torch.float32, device=x.device)
    with _on(x):
        _norm_backward[(programs,)](grad, second, x, branch, weight, mean, scale, given, sums, rows, width, block, high, other is not None, num_warps=warps)
        both = _added_up(sums, weight.dtype)
    return given, both.view(2, width)


@added_norm_backward.register_fake
def _(grad: Tensor, other: Tensor | None, x: Tensor, branch: Tensor, weight: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), weight.new_empty(2, x.shape[1])


@custom_op("unmask::stack", mutates_args=())
def stack(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(T, N, H) of each -> side by side, (T, 3 D), and the sums of the columns."""
    rows, width = q.shape[0], q.shape[1] * q.shape[2]
    share, high, wide, warps = LAUNCH["stack"]
    q, k, v = (one.reshape(rows, width) for one in (q, k, v))  # a copy where heads do not lie side by side
    q, k, v = (one if one.stride(1) == 1 else one.contiguous() for one in (q, k, v))
    out = torch.empty(rows, 3 * width, dtype=q.dtype, device=q.device)
    programs = triton.cdiv(rows, share)
    sums = torch.empty(programs, 3 * width, dtype=torch.float32, device=q.device)
    with _on(q):
        _stack[(triton.cdiv(width, wide), programs)](q, k, v, out, sums, rows, q.stride(0), k.stride(0), v.stride(0), width, share, high, wide, num_warps=warps)
        return out, _added_up(sums, q.dtype)


@stack.register_fake
def _(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    width = q.shape[1] * q.shape[2]
    return q.new_empty(q.shape[0], 3 * width), q.new_empty(3 * width)


def _of_product(ctx: Any, given: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of x and of the weight, where they are asked for."""
    return given.mm(weight) if ctx.needs_input_grad[0] else None, given.t().mm(x) if ctx.needs_input_grad[1] else None


class Activated(torch.autograd.Function):
    """gelu(x weight' + bias). What goes into the GELU and what comes out are both kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        pre = torch.addmm(bias, x, weight.t())
        ctx.save_for_backward(x, weight, pre)
        return gelu(pre)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, pre = ctx.saved_tensors
        given, of_bias = gelu_backward(grad, pre)
        return *_of_product(ctx, given, x, weight), of_bias


class AddedNorm(torch.autograd.Function):
    """norm(x + branch)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, branch: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        out, mean, scale = added_norm(x, branch, weight, bias, epsilon)
        ctx.save_for_backward(x, branch, weight, mean, scale)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        given, learned = added_norm_backward(grad, None, *ctx.saved_tensors)
        return given, given, learned[0], learned[1], None


class AddedNormForTwo(torch.autograd.Function):
    """The same for two readers: their gradients come apart, and are added up where they are read."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, branch: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        out, mean, scale = added_norm(x, branch, weight, bias, epsilon)
        ctx.save_for_backward(x, branch, weight, mean, scale)
        return out, out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, other: Tensor) -> tuple[Tensor | None, ...]:
        given, learned = added_norm_backward(grad, other, *ctx.saved_tensors)
        return given, given, learned[0], learned[1], None


class Split(torch.autograd.Function):
    """x weight' + bias as three, (T, N, H) each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, weight)
        return torch.addmm(bias, x, weight.t()).unflatten(-1, (3, heads, -1)).unbind(-3)

    @staticmethod
    def backward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        given, of_bias = stack(q, k, v)
        return *_of_product(ctx, given, x, weight), of_bias, None
