"""In which numbers a run computes, and in which it learns.

In bf16 and fp16 the modules hold copies of half the bytes: products, norms and sums all move half as much. What is learned stays in float32 beside
them: gradients are added up there, the optimizer steps there, and the copies are made anew after each step.

The numbers of fp16 end at 65,504, and gradients are lost below 6e-8: so its loss is scaled up (Micikevicius et al. 2018, section 3.2), as far as it
goes. A step whose gradient went beyond the numbers changes nothing and halves the scale; many good ones double it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

Kind = Literal["auto", "float32", "bf16", "fp16", "float64"]
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "float64": torch.float64}
HALF = ("bf16", "fp16")
SCALE, LEAST = 2.0**16, 1.0  # of fp16's loss: at first, and from where on it is no longer the scale that goes beyond the numbers
PATIENCE = 2000  # good steps, one after another, before it is doubled


class Precision:
    """`masters` are the parameters to learn, by name; where the modules compute in their precision, they are the modules' own.

    Where FSDP2 shares the parameters out, they are this rank's rows: it makes the copies from them, and adds up the gradients of all ranks.
    """

    def __init__(self, module: nn.Module, kind: str, *, sharded: bool = False) -> None:
        self.module, self.kind = module, kind
        inside: dict[str, Tensor] = dict(module.named_parameters())
        self.masters = inside
        if sharded:
            self.masters = {name: _rows(p.detach()).requires_grad_() for name, p in inside.items()}
        elif kind in HALF:
            self.masters = {name: p.detach().clone().requires_grad_() for name, p in inside.items()}
        if not sharded:
            module.to(DTYPES[kind])
        self.inside: list[Tensor] = list(inside.values())  # the modules' own, in the masters' order
        self.pairs = list(zip(self.masters.values(), self.inside, strict=True)) if self.masters is not inside else []
        self.copies = [] if sharded else [copy for _, copy in self.pairs]
        device = next(iter(self.masters.values())).device
        self.scale = torch.tensor(SCALE, device=device) if kind == "fp16" else None
        self.good = torch.zeros((), dtype=torch.int32, device=device)  # steps since the scale moved

    @torch.no_grad()
    def gather(self, places: Iterable[int] | None = None) -> None:
        """After each backward: the gradients of the copies, of all or of those at these places, are added to the masters'."""
        fresh: list[tuple[Tensor, Tensor]] = []
        more: list[tuple[Tensor, Tensor]] = []
        pairs = self.pairs if places is None or not self.pairs else [self.pairs[place] for place in places]
        for master, copy in pairs:
            if copy.grad is None:
                continue
            grad, copy.grad = _rows(copy.grad), None
            if master.grad is not None:
                more.append((master.grad, grad))
            elif grad.dtype == master.dtype:
                master.grad = grad
            else:
                master.grad = torch.empty_like(master)
                fresh.append((master.grad, grad))
        if fresh:
            torch._foreach_copy_([ours for ours, _ in fresh], [theirs for _, theirs in fresh])
        if more:
            torch._foreach_add_([ours for ours, _ in more], [theirs.to(ours.dtype) for ours, theirs in more])

    @torch.no_grad()
    def publish(self) -> None:
        """After each step: the copies are made anew."""
        if self.copies:
            torch._foreach_copy_(self.copies, list(self.masters.values()))

    # ---- the scale of fp16's loss

    def scaled(self, loss: Tensor) -> Tensor:
        return loss if self.scale is None else loss * self.scale

    @torch.no_grad()
    def judged(self, norms: Tensor) -> Tensor:
        """After each step: the scale follows what the gradients' norms say. Given back are the norms, those forgiven that a smaller scale will mend."""
        if self.scale is None:
            return norms
        bad = (~torch.isfinite(norms).all()).float()
        found = torch.where(self.scale > LEAST, norms.nan_to_num(0.0, 0.0, 0.0), norms)
        torch._amp_update_scale_(self.scale, self.good, bad, 2.0, 0.5, PATIENCE)
        self.scale.clamp_(min=LEAST)
        return found

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps."""
        return {} if self.scale is None else {"scale": self.scale.clone(), "good": self.good.clone()}

    def restore(self, kept: Mapping[str, Tensor]) -> None:
        if self.scale is not None and kept:  # a run that goes on in fp16 may have begun in other numbers
            self.scale.copy_(kept["scale"])
            self.good.copy_(kept["good"])


def chosen(kind: str, device: torch.device) -> str:
    """bf16 on a GPU that has it, fp16 on one that has not; float32 elsewhere."""
    if kind != "auto":
        return kind
    if device.type != "cuda":
        return "float32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


def _rows(tensor: Tensor) -> Tensor:
    """This rank's, of what FSDP2 shares out; the storage stays the same."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
