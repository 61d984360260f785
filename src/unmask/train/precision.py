"""In which numbers a run computes, and in which it learns.

In bf16 the modules hold bf16 copies: products, norms and sums all move half the bytes. What is learned stays in float32 beside them: gradients
are added up there, the optimizer steps there, and the copies are made anew after each step.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

Kind = Literal["auto", "float32", "bf16", "float64"]


class Precision:
    """`masters` are the parameters to learn, by name; where the modules compute in their precision, they are the modules' own."""

    def __init__(self, module: nn.Module, kind: str) -> None:
        self.module, self.kind = module, kind
        if kind == "bf16":
            self.masters = {name: p.detach().clone().requires_grad_() for name, p in module.named_parameters()}
            module.to(torch.bfloat16)
        else:
            module.to(torch.float64 if kind == "float64" else torch.float32)
            self.masters = dict(module.named_parameters())
        self.copies: list[Tensor] = [p for _, p in module.named_parameters()] if kind == "bf16" else []

    @torch.no_grad()
    def gather(self) -> None:
        """After each backward: the gradients of the copies are added to the masters'."""
        fresh: list[tuple[Tensor, Tensor]] = []
        more: list[tuple[Tensor, Tensor]] = []
        for master, copy in zip(self.masters.values(), self.copies, strict=False):
            if copy.grad is not None and master.grad is None:
                master.grad = torch.empty_like(master)
                fresh.append((master.grad, copy.grad))
            elif copy.grad is not None and master.grad is not None:
                more.append((master.grad, copy.grad))
            copy.grad = None
        if fresh:
            torch._foreach_copy_([ours for ours, _ in fresh], [theirs for _, theirs in fresh])
        if more:
            torch._foreach_add_([ours for ours, _ in more], [theirs.float() for _, theirs in more])

    @torch.no_grad()
    def publish(self) -> None:
        """After each step: the copies are made anew."""
        if self.copies:
            torch._foreach_copy_(self.copies, list(self.masters.values()))


def chosen(kind: str, device: torch.device) -> str:
    """bf16 on a GPU that has it; float32 elsewhere."""
    if kind != "auto":
        return kind
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
