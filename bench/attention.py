"""Attention over sequences of mixed length, forward and backward, by each kernel that a GPU has: milliseconds, and the share of its matrix rate.

python bench/attention.py --tokens 65536 --length 512 --heads 12 --width 64
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from unmask.model.layout import Packed


def milliseconds(call: Callable[[], object], rounds: int = 20) -> float:
    for _ in range(3):
        call()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(rounds):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=65_536)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--mixed", action="store_true", help="lengths from a quarter of the longest up, as documents give them")
    asked = parser.parse_args()
    draw = torch.Generator().manual_seed(0)
    lengths: list[int] = []
    while (room := asked.tokens - sum(lengths)) > 0:
        drawn = int(torch.randint(asked.length // 4, asked.length + 1, (1,), generator=draw)) if asked.mixed else asked.length
        lengths.append(min(room, drawn))
    layout = Packed.of(lengths).to("cuda")
    layout = Packed(layout.bounds, asked.length, layout.groups)
    qkv = torch.randn(asked.tokens, 3, asked.heads, asked.width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(asked.tokens, asked.heads, asked.width, device="cuda", dtype=torch.bfloat16)

    def packed() -> Tensor:
        return layout.attend(*qkv.unbind(1))

    def rows(kernel: SDPBackend) -> Tensor:
        with sdpa_kernel(kernel):
            q, k, v = (one.unflatten(0, (-1, asked.length)).transpose(1, 2) for one in qkv.unbind(1))
            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(0, 1)

    ways: dict[str, Callable[[], Tensor]] = {"packed": packed}
    if not asked.mixed:
        ways |= {"rows, flash": lambda: rows(SDPBackend.FLASH_ATTENTION), "rows, cuDNN": lambda: rows(SDPBackend.CUDNN_ATTENTION)}
    work = 4 * sum(length**2 for length in lengths) * asked.heads * asked.width
    with torch.no_grad():
        first = packed().float()
    for name, way in ways.items():

        def both(way: Callable[[], Tensor] = way) -> None:
            qkv.grad = None
            way().backward(weight)

        with torch.no_grad():
            ahead, off = milliseconds(way), float((way().float() - first).norm() / first.norm())
        whole = milliseconds(both)
        print(f"{name:14s}{ahead:8.3f} ms forward ({work / ahead / 1e9:5.0f} TFLOP/s){whole:8.3f} ms both ({3.5 * work / whole / 1e9:5.0f}), off by {off:.1e}")


if __name__ == "__main__":
    main()
