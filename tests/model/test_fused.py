"""The GPU's own kernels against torch's modules. Where Triton is, its interpreter runs them on the CPU; it reads the variable when it is imported."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.model import kernels
from unmask.model.encoder import Encoder, EncoderConfig
from unmask.model.layout import Packed, Padded

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# Its interpreter takes arrays of one number as numbers, which numpy ends with 2.4.
TRITON = tuple(map(int, np.__version__.split(".")[:2])) < (2, 4) and importlib.util.find_spec("triton") is not None
pytestmark = [pytest.mark.filterwarnings("ignore:Conversion of an array"), pytest.mark.filterwarnings("ignore:overflow encountered")]
interpreted = pytest.mark.skipif(not INTERPRETED or not TRITON, reason="run by test_interpreted")
Ours = Callable[..., Any]


@pytest.mark.skipif(INTERPRETED or not TRITON, reason="no Triton here that its interpreter serves")
def test_interpreted() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", str(Path(__file__)), "-m", "not gpu"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Every tensor goes to our kernels; what went is listed."""
    went: list[Tensor] = []

    def always(x: Tensor) -> bool:
        went.append(x)
        return True

    monkeypatch.setattr(kernels, "fused", always)
    return went


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def module(kind: Callable[..., nn.Module], *shape: int) -> nn.Module:
    made = kind(*shape).double()
    with torch.no_grad():
        for seed, p in enumerate(made.parameters(), 7):
            p.copy_(drawn(*p.shape, seed=seed, scale=shape[0] ** -0.5) if p.ndim > 1 else drawn(*p.shape, seed=seed) + (kind is nn.LayerNorm) * (seed == 7))
    return made


def both(ours: Ours, plain: Ours, layer: nn.Module, given: list[Tensor], dtype: torch.dtype, device: str = "cpu") -> dict[str, float]:
    """How far answers and gradients are from those in float64 of the same rounded numbers, as a share of their norm."""
    found: list[list[Tensor]] = []
    for call, kind in ((ours, dtype), (plain, torch.float64)):
        there = layer.to(device, dtype).to(kind)
        inputs = [one.to(device, dtype).to(kind).requires_grad_() for one in given]
        answers = call(there, *inputs)
        answers = answers if isinstance(answers, tuple) else (answers,)
        grads = [drawn(*one.shape, seed=50 + place).to(device, dtype).to(kind) for place, one in enumerate(answers)]
        learned = [*inputs, *there.parameters()]
        found.append([*(one.detach() for one in answers), *torch.autograd.grad(answers, learned, grads)])
    names = [*(f"answer {place}" for place in range(len(answers))), *(f"input {place}" for place in range(len(given)))]
    names += [name for name, _ in layer.named_parameters()]
    return {name: float((one.double() - two).norm() / two.norm()) for name, one, two in zip(names, *found, strict=True)}


def plain_split(qkv: nn.Module, x: Tensor, heads: int) -> tuple[Tensor, ...]:
    return qkv(x).unflatten(-1, (3, heads, -1)).unbind(-3)


def cases(rows: int, width: int, hidden: int) -> dict[str, tuple[Ours, Ours, nn.Module, list[Tensor]]]:
    x, branch = drawn(rows, width, seed=1), drawn(rows, width, seed=2) + 0.5
    up, norm, qkv = module(nn.Linear, width, hidden), module(nn.LayerNorm, width), module(nn.Linear, width, 3 * width)
    heads = width // 32
    return {
        "activated": (kernels.activated, lambda up, x: F.gelu(up(x)), up, [x]),
        "norm": (kernels.added_norm, lambda norm, x, branch: norm(x + branch), norm, [x, branch]),
        "norm for two": (kernels.added_norm_for_two, lambda norm, x, branch: (norm(x + branch),) * 2, norm, [x, branch]),
        "split": (lambda qkv, x: kernels.split(qkv, x, heads), lambda qkv, x: plain_split(qkv, x, heads), qkv, [x]),
    }


SIZES = [(37, 768, 3072), (5, 1024, 96), (70, 320, 96), (19, 96, 264), (300, 64, 256)]
NAMES = ["activated", "norm", "norm for two", "split"]


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_interpreted_answers_and_gradients(name: str, size: tuple[int, int, int], dtype: torch.dtype, everywhere: list[Tensor]) -> None:
    off = both(*cases(*size)[name], dtype)
    assert everywhere
    assert max(off.values()) < (1e-5 if dtype == torch.float32 else 1e-2), off


@interpreted
def test_gelu_is_close_everywhere() -> None:
    from unmask.model import fused

    pre = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([0.0, -0.0, 1e30, -1e30, 1e-30])])[None]
    wanted = pre.double().requires_grad_()
    F.gelu(wanted).sum().backward()
    assert (fused.gelu(pre) - F.gelu(wanted)).abs().max() < 1e-6 * 12
    given, sums = fused.gelu_backward(torch.ones_like(pre), pre)
    assert wanted.grad is not None
    assert (given - wanted.grad).abs().max() < 2e-6
    assert torch.equal(sums, given[0])


@interpreted
def test_a_row_far_from_zero_keeps_its_deviation(everywhere: list[Tensor]) -> None:
    norm = nn.LayerNorm(96, eps=1e-12)
    x = 1000 + torch.randn(4, 96)
    wanted = nn.functional.layer_norm(x.double() * 2, (96,), eps=1e-12)
    assert (kernels.added_norm(norm, x, x) - wanted).abs().max() < 1e-3
    assert everywhere


@interpreted
def test_gradients_that_lie_as_attention_leaves_them(everywhere: list[Tensor]) -> None:
    """Padded: heads outside of tokens; a broadcast one; and the two leading dimensions of rows."""
    qkv = nn.Linear(64, 192)
    x = torch.randn(3, 5, 64, requires_grad=True)
    weights = torch.randn(3, 2, 5, 32).transpose(1, 2), torch.randn(1, 1, 1, 1).expand(3, 5, 2, 32), torch.randn(3, 5, 2, 32)
    learned = [x, *qkv.parameters()]
    ours = torch.autograd.grad(kernels.split(qkv, x, 2), learned, weights)
    plain = torch.autograd.grad(plain_split(qkv, x, 2), learned, weights)
    for one, two in zip(ours, plain, strict=True):
        assert torch.allclose(one, two, atol=1e-5)
    assert everywhere


@interpreted
def test_operators_are_sound() -> None:
    from unmask.model import fused

    x, branch, weight, bias = torch.randn(9, 32), torch.randn(9, 32), torch.randn(32), torch.randn(32)
    _, mean, scale = fused.added_norm(x, branch, weight, bias, 1e-5)
    q = torch.randn(9, 3, 2, 16)
    given = [
        (fused.gelu, (x,)),
        (fused.gelu_backward, (x, branch)),
        (fused.added_norm, (x, branch, weight, bias, 1e-5)),
        (fused.added_norm_backward, (x, None, x, branch, weight, mean, scale)),
        (fused.added_norm_backward, (x, branch, x, branch, weight, mean, scale)),
        (fused.stack, tuple(q.unbind(1))),
    ]
    for operator, arguments in given:
        torch.library.opcheck(operator, arguments)


CONFIG = EncoderConfig(width=64, depth=2, heads=2, hidden=96)


def learned(encoder: Encoder, compiled: bool, recompute: bool = False, frozen: bool = False) -> list[Tensor]:
    from functools import partial

    from torch.utils.checkpoint import checkpoint

    layout = Packed.of((7, 12, 4))
    x = drawn(23, 64).float().requires_grad_()
    for place, layer in enumerate(encoder.layers):
        layer.requires_grad_(not frozen or place > 0)
        if recompute:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        if compiled:
            layer.compile(dynamic=False, fullgraph=not recompute, backend="aot_eager")
    encoder(x, None, layout).square().mean().backward()
    return [one.grad for one in (x, *encoder.parameters()) if one.grad is not None]


@interpreted
@pytest.mark.filterwarnings("ignore")  # torch's compiler has its own
@pytest.mark.parametrize("how", ["eager", "compiled", "recomputed", "compiled and recomputed", "compiled and frozen"])
def test_a_whole_encoder_learns_the_same(how: str, everywhere: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    encoder = Encoder(CONFIG).train()
    state = encoder.state_dict()
    monkeypatch.setattr(kernels, "fused", lambda x: True)  # the compiler cannot see a list grow
    ours = learned(encoder, "compiled" in how, "recomputed" in how, "frozen" in how)
    monkeypatch.setattr(kernels, "fused", lambda x: False)
    again = Encoder(CONFIG).train()
    again.load_state_dict(state)
    plain = learned(again, compiled=False, frozen="frozen" in how)
    assert len(ours) == len(plain)
    for one, two in zip(ours, plain, strict=True):
        assert (one - two).norm() <= 1e-4 * two.norm() + 1e-7


@interpreted
def test_answers_without_gradients(everywhere: list[Tensor]) -> None:
    encoder, x, layout = Encoder(CONFIG).eval(), torch.randn(2, 6, 64), Padded(2, 6)
    with torch.inference_mode():
        found = encoder(x, None, layout)
    count = len(everywhere)
    with torch.no_grad():
        again = encoder(x, None, layout)
    assert (count, len(everywhere)) == (8, 16)
    assert torch.equal(found, again)


# ---- who is asked


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our kernels must not be called."""
    for name in ("Activated", "AddedNorm", "AddedNormForTwo", "Split"):
        if hasattr(kernels, "own"):
            monkeypatch.delattr(kernels.own, name)


def test_a_cpu_computes_as_torch_does(refused: None) -> None:
    x, branch = torch.randn(5, 64, requires_grad=True), torch.randn(5, 64)
    up, norm, qkv = nn.Linear(64, 96), nn.LayerNorm(64), nn.Linear(64, 192)
    for dtype in (torch.float32, torch.bfloat16):
        given, more = x.to(dtype), branch.to(dtype)
        for part in (up, norm, qkv):
            part.to(dtype)
        assert torch.equal(kernels.activated(up, given), F.gelu(up(given)))
        assert torch.equal(kernels.added_norm(norm, given, more), norm(given + more))
        assert all(torch.equal(one, norm(given + more)) for one in kernels.added_norm_for_two(norm, given, more))
        assert all(torch.equal(one, two) for one, two in zip(kernels.split(qkv, given, 4), plain_split(qkv, given, 4), strict=True))


def test_what_hangs_on_a_module_is_called(monkeypatch: pytest.MonkeyPatch, refused: None) -> None:
    monkeypatch.setattr(kernels, "fused", lambda x: True)
    seen: list[nn.Module] = []
    x = torch.randn(5, 64)
    up, norm, qkv = nn.Linear(64, 96), nn.LayerNorm(64), nn.Linear(64, 192)
    for part in (up, norm, qkv):
        part.register_forward_hook(lambda part, given, found: seen.append(part))
    kernels.activated(up, x)
    kernels.added_norm(norm, x, x)
    kernels.added_norm_for_two(norm, x, x)
    kernels.split(qkv, x, 4)
    assert seen == [up, norm, norm, qkv]
    kernels.split(nn.Linear(64, 192, bias=False), x, 4)
    kernels.split(nn.Linear(64, 192), x, 4, turned=True)
    kernels.added_norm(nn.LayerNorm(64, bias=False), x, x)
    kernels.added_norm(nn.Identity(), x, x)


# ---- on a GPU


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("size", [(1000, 768, 3072), (513, 1024, 4096), (70, 320, 96)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_gpu_answers_and_gradients(name: str, size: tuple[int, int, int], compiled: bool) -> None:
    ours, plain, layer, given = cases(*size)[name]
    assert kernels.fused(given[0].to("cuda", torch.bfloat16))
    torch._dynamo.reset()
    called = torch.compile(ours, fullgraph=True, dynamic=False) if compiled else ours
    off = both(called, plain, layer, given, torch.bfloat16, "cuda")
    assert max(off.values()) < 1e-2, off


@pytest.mark.gpu
def test_gpu_gives_the_same_bits_again() -> None:
    ours, _, layer, (x, branch) = cases(4096, 768, 3072)["norm for two"]
    layer = layer.to("cuda", torch.bfloat16)
    given = [one.to("cuda", torch.bfloat16).requires_grad_() for one in (x, branch)]
    first, *others = (torch.autograd.grad([one.float().square().sum() for one in ours(layer, *given)], [*given, *layer.parameters()]) for _ in range(3))
    assert all(torch.equal(one, two) for other in others for one, two in zip(first, other, strict=True))
