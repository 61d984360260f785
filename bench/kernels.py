"""Our own kernels between a layer's matrix products against torch's compiler, on a GPU in bf16: milliseconds, bytes a second, and how far off.

    python bench/kernels.py                       # each kernel alone, then each half of a layer and a whole one against plain modules, both compiled
    python bench/kernels.py --tune --kernels      # each kernel alone, cut up in other ways too

A layer's turns alternate in one process; a figure is the median. Bytes are the fewest that can be: each number read once and written once.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.model import kernels
from unmask.model.encoder import EncoderConfig, Layer
from unmask.model.layout import FULL, Packed

OURS = kernels.fused
OTHERS: dict[str, tuple[tuple[int, ...], ...]] = {
    "gelu": ((2048, 4), (8192, 8), (1024, 4)),
    "gelu_backward": ((128, 16, 256, 8), (256, 8, 256, 4), (256, 8, 256, 8), (256, 32, 256, 8), (512, 16, 256, 8)),
    "norm": ((1, 1), (4, 4), (2, 2), (4, 1), (2, 4)),
    "norm_backward": ((1, 1, 200), (1, 1, 600), (2, 4, 320), (4, 4, 512), (1, 2, 256), (1, 4, 256), (2, 4, 640)),
    "stack": ((128, 16, 256, 8), (64, 8, 256, 8), (256, 8, 256, 8), (128, 8, 256, 4)),
}
Call = Callable[[], object]


def milliseconds(calls: dict[str, Call], rounds: int = 5, each: int = 10) -> dict[str, float]:
    """Of one call, the median of turns that alternate."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn, (name, call) in itertools.product(range(rounds + 1), calls.items()):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(each if turn else 2):  # the first turn warms up
            call()
        end.record()
        torch.cuda.synchronize()
        if turn:
            found[name].append(begin.elapsed_time(end) / each)
    return {name: statistics.median(turns) for name, turns in found.items()}


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def alone(tokens: int, width: int, hidden: int, tune: bool) -> None:
    own = kernels.own
    x, branch, grad, more = (drawn(tokens, width) for _ in range(4))
    weight, bias = drawn(width), drawn(width)
    pre, after = drawn(tokens, hidden), drawn(tokens, hidden)
    q, k, v = (drawn(tokens, width // 64, 64) for _ in range(3))
    _, mean, scale = own.added_norm(x, branch, weight, bias, 1e-12)
    calls: dict[str, tuple[str, Call, int]] = {
        "gelu": ("gelu", lambda: own.gelu(pre), 2 * hidden),
        "gelu backward": ("gelu_backward", lambda: own.gelu_backward(after, pre), 3 * hidden),
        "norm": ("norm", lambda: own.added_norm(x, branch, weight, bias, 1e-12), 3 * width),
        "norm backward": ("norm_backward", lambda: own.added_norm_backward(grad, None, x, branch, weight, mean, scale), 4 * width),
        "norm backward, two": ("norm_backward", lambda: own.added_norm_backward(grad, more, x, branch, weight, mean, scale), 5 * width),
        "stack": ("stack", lambda: own.stack(q, k, v), 6 * width),
    }
    for name, (kernel, call, columns) in calls.items():
        chosen = own.LAUNCH[kernel]
        for launch in (chosen, *(OTHERS[kernel] if tune else ())):
            own.LAUNCH[kernel] = launch
            took = milliseconds({name: call}, each=20)[name]
            cut = " x ".join(map(str, launch))
            print(f"  {name:20s}{took:8.3f} ms {2 * tokens * columns / took / 1e6:7.0f} GB/s   {cut}{' (chosen)' if launch == chosen else ''}", flush=True)
        own.LAUNCH[kernel] = chosen


def plain_split(qkv: nn.Module, x: Tensor, heads: int) -> tuple[Tensor, ...]:
    return qkv(x).unflatten(-1, (3, heads, -1)).unbind(-3)


def off(found: list[Tensor], wanted: list[Tensor]) -> list[float]:
    return [float((one.float() - two).norm() / two.norm()) for one, two in zip(found, wanted, strict=True)]


def halves(tokens: int, width: int, hidden: int) -> bool:
    heads, good = width // 64, True
    up, qkv, norm = nn.Linear(width, hidden), nn.Linear(width, 3 * width), nn.LayerNorm(width, eps=1e-12)
    nn.init.normal_(norm.weight, 1, 0.3)
    nn.init.normal_(norm.bias, 0, 0.3)
    cases: dict[str, tuple[Callable[..., Any], Callable[..., Any], nn.Module, int]] = {
        "activated": (kernels.activated, lambda up, x: F.gelu(up(x)), up, 1),
        "added_norm": (kernels.added_norm, lambda norm, x, branch: norm(x + branch), norm, 2),
        "split": (lambda qkv, x: kernels.split(qkv, x, heads), lambda qkv, x: plain_split(qkv, x, heads), qkv, 1),
    }
    for name, (ours, plain, made, count) in cases.items():
        layer = made.to("cuda", torch.bfloat16)
        given = [drawn(tokens, width).requires_grad_() for _ in range(count)]
        learned = [*given, *layer.parameters()]
        forward: dict[str, Call] = {}
        whole: dict[str, Call] = {}
        errors: dict[str, list[float]] = {}
        grads: tuple[Tensor, ...] = ()
        wanted: list[Tensor] = []
        for who, way in {"exact": plain, "ours": ours, "torch": plain}.items():
            there: Any = copy.deepcopy(layer).float() if who == "exact" else layer
            taken = [one.detach().float().requires_grad_() for one in given] if who == "exact" else given
            called = way if who == "exact" else torch.compile(way, dynamic=False, fullgraph=True)

            def run(called: Callable[..., Any] = called, there: Any = there, taken: list[Tensor] = taken) -> tuple[Tensor, ...]:
                found = called(there, *taken)
                return found if isinstance(found, tuple) else (found,)

            found = run()
            grads = grads or tuple(drawn(*one.shape) for one in found)
            if who == "exact":
                into = [one.float() for one in grads]
                wanted = [one.detach() for one in found] + list(torch.autograd.grad(found, [*taken, *there.parameters()], into))
                continue

            def both(run: Callable[[], tuple[Tensor, ...]] = run, grads: tuple[Tensor, ...] = grads) -> tuple[Tensor, ...]:
                return torch.autograd.grad(run(), learned, grads)  # noqa: B023

            forward[who], whole[who] = run, both
            errors[who] = off([*(one.detach() for one in found), *both()], wanted)
        del wanted, found
        if isinstance(layer, nn.Linear):
            result = drawn(tokens, layer.out_features)

            def products(layer: nn.Linear = layer, x: Tensor = given[0], result: Tensor = result) -> None:
                with torch.no_grad():
                    F.linear(x, layer.weight, layer.bias)
                    result.mm(layer.weight)
                    result.t().mm(x)

            whole["products"] = products
        ahead, took = milliseconds(forward), milliseconds(whole)
        line = (
            f"  {name:12s} forward: ours {ahead['ours']:.3f} ms, torch {ahead['torch']:.3f}; and backward: ours {took['ours']:.3f}, torch {took['torch']:.3f}"
        )
        if "products" in took:
            line += f", of which products {took['products']:.3f}"
        print(f"{line}; off by at most {max(errors['ours']):.1e}, torch {max(errors['torch']):.1e}", flush=True)
        if max(errors["ours"]) >= 1e-2:
            print(f"  WRONG: answers and gradients are off by {', '.join(f'{one:.1e}' for one in errors['ours'])}")
            good = False
    return good


def whole(tokens: int, width: int, hidden: int) -> bool:
    """A layer, with our kernels and without: the predicate that chooses is changed before each turn."""
    config = EncoderConfig(width=width, depth=1, heads=width // 64, hidden=hidden)
    layout = Packed.of([512] * (tokens // 512)).to("cuda")
    torch.manual_seed(0)
    first = Layer(config).to("cuda", torch.bfloat16)
    x, grad = drawn(tokens, width).requires_grad_(), drawn(tokens, width)
    forward: dict[str, Call] = {}
    both: dict[str, Call] = {}
    results: dict[str, list[Tensor]] = {}
    for who, predicate in {"ours": OURS, "torch": lambda x: False}.items():
        layer = copy.deepcopy(first)
        layer.compile(dynamic=False, fullgraph=True)

        def run(layer: Layer = layer, predicate: Callable[[Tensor], bool] = predicate) -> Tensor:
            kernels.fused = predicate
            return layer(x, layout, FULL, None)

        def back(layer: Layer = layer, run: Callable[[], Tensor] = run) -> tuple[Tensor, ...]:
            return torch.autograd.grad(run(), [x, *layer.parameters()], grad)

        results[who] = [run().detach().float(), *(one.float() for one in back())]
        forward[who], both[who] = run, back
    errors = off(results["ours"], results["torch"])
    ahead, took = milliseconds(forward), milliseconds(both)
    kernels.fused = OURS
    print(
        f"  {'layer':12s} forward: ours {ahead['ours']:.3f} ms, torch {ahead['torch']:.3f}; and backward: ours {took['ours']:.3f}, torch {took['torch']:.3f}; "
        f"ours from torch's by at most {max(errors):.1e}",
        flush=True,
    )
    return max(errors) < 3e-2  # both are rounded all along


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="*", default=[65_536])
    parser.add_argument("--width", type=int, nargs="*", default=[768, 1024])
    parser.add_argument("--tune", action="store_true", help="cut up in other ways too")
    parser.add_argument("--kernels", action="store_true", help="each kernel alone, nothing compiled by torch")
    asked = parser.parse_args()
    if not kernels.OWN or not torch.cuda.is_available():
        print("our own kernels need a GPU and Triton")
        return
    good = True
    for tokens, width in itertools.product(asked.tokens, asked.width):
        print(f"{tokens} tokens, width {width}")
        alone(tokens, width, 4 * width, asked.tune)
        if not asked.kernels:
            torch._dynamo.reset()
            good = halves(tokens, width, 4 * width) and whole(tokens, width, 4 * width) and good
    if not good:
        raise SystemExit("our kernels are off by more than bf16 rounds")


if __name__ == "__main__":
    main()
