"""Optimizers, and which parameter is learned how: groups are rules on names.

AdamW (Loshchilov and Hutter 2019) is torch's, fused. LAMB (You et al. 2020) scales each tensor's step to its norm. Muon (Jordan et al.
2024) makes each matrix's step orthogonal; all matrices of a shape go through that as one batch, and AdamW learns what is no matrix.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from unmask.errors import UserError
from unmask.train.shares import Shares

STACKED = {"attention.qkv.weight": 3, "feed.up.weight": 2}  # matrices that are several, one above the other; the second where it is gated
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic that brings every singular value near 1 in five rounds (Jordan 2024)


@dataclass(frozen=True)
class Optimizer:
    """`lr` of muon is for matrices, `rest` for everything else; `layer_decay` below 1 learns lower layers more slowly."""

    name: Literal["adamw", "lamb", "muon"] = "adamw"
    lr: float = 1e-4
    rest: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    momentum: float = 0.95
    layer_decay: float = 1.0
    clip: float = 1.0  # of the gradient's norm; 0: never

    def __post_init__(self) -> None:
        if not (self.lr > 0 and self.rest > 0 and 0 < self.layer_decay <= 1 and self.clip >= 0):
            raise UserError(
                f"an optimizer with lr {self.lr}, rest {self.rest}, layer_decay {self.layer_decay} and clip {self.clip} cannot be; rates are above 0"
            )
        if not (all(0 <= one < 1 for one in (*self.betas, self.momentum)) and self.epsilon >= 0 and self.weight_decay >= 0):
            raise UserError(
                f"an optimizer with betas {self.betas}, momentum {self.momentum}, epsilon {self.epsilon} and weight_decay {self.weight_decay} cannot be; "
                "betas and momentum are 0 to below 1, the others 0 or more"
            )


@dataclass(frozen=True)
class Rule:
    """What one parameter gets."""

    scale: float  # of the learning rate
    decays: bool
    matrix: bool  # for Muon
    parts: int


def rule(name: str, tensor: Tensor, config: Optimizer, depth: int, gated: bool) -> Rule:
    """Norms, biases and other vectors do not decay; embeddings and heads are no matrices to Muon, as their rows are words."""
    matrix = tensor.ndim == 2 and "encoder.layers." in name
    found = re.search(r"encoder\.layers\.(\d+)\.", name)
    level = int(found[1]) + 1 if found else 0 if ".embed." in f".{name}" else depth + 1
    parts = next((count for ending, count in STACKED.items() if name.endswith(ending) and (count == 3 or gated)), 1)
    return Rule(config.layer_decay ** (depth + 1 - level), tensor.ndim > 1, matrix, parts)


class AdamW(torch.optim.AdamW):
    """torch's own. `grad_scale` and `found_inf` are what its fused kernel reads to clip, and to leave a step out, at no cost."""


class Lamb(torch.optim.Optimizer):
    shares = Shares({})

    def __init__(self, groups: Iterable[dict[str, Any]], **settings: Any) -> None:
        super().__init__(groups, settings)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            ours = [p for p in group["params"] if p.grad is not None]
            if not ours:
                continue
            for p in ours:
                if not self.state[p]:
                    self.state[p] = {"step": torch.zeros(()), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
                self.state[p]["step"] += 1
            grads, first, second = ([p.grad for p in ours], *([self.state[p][name] for p in ours] for name in ("exp_avg", "exp_avg_sq")))
            one, two = group["betas"]
            torch._foreach_lerp_(first, grads, 1 - one)
            torch._foreach_mul_(second, two)
            torch._foreach_addcmul_(second, grads, grads, 1 - two)
            counts = [float(self.state[p]["step"]) for p in ours]  # a tensor that had no gradient at some step is behind the others
            down = torch._foreach_sqrt(torch._foreach_div(second, [1 - two**count for count in counts]))
            torch._foreach_add_(down, group["eps"])
            update = torch._foreach_div(torch._foreach_div(first, [1 - one**count for count in counts]), down)
            torch._foreach_add_(update, ours, alpha=group["weight_decay"])
            if group["decays"]:  # what does not decay is not scaled either (section 3.1)
                sizes, steps = self.shares.norms(torch.stack([*torch._foreach_norm(ours), *torch._foreach_norm(update)])).chunk(2)
                torch._foreach_mul_(update, list(torch.where((sizes > 0) & (steps > 0), sizes / steps, 1.0).unbind()))
            torch._foreach_add_(ours, update, alpha=-group["lr"])


class Muon(torch.optim.Optimizer):
    """Matrices only; a group holds those of one shape, and their momenta lie in one tensor."""

    share: Tensor | None = None  # what is left of each gradient after clipping; not finite: a step that changes nothing, and nobody waits to know
    shares = Shares({})

    def __init__(self, groups: Iterable[dict[str, Any]], **settings: Any) -> None:
        super().__init__(groups, settings)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            ours = [p for p in group["params"] if p.grad is not None]
            if not ours:
                continue
            grads, kept = torch.stack([p.grad for p in ours]), self._momenta(ours)
            share = torch.ones((), dtype=grads.dtype, device=grads.device) if self.share is None else self.share.to(grads.dtype)
            good = torch.isfinite(share).to(grads.dtype)
            grads = torch.where(good > 0, grads * share, 0)
            kept.lerp_(grads, (1 - group["momentum"]) * good)
            ahead = grads.lerp_(kept, group["momentum"])  # Nesterov's
            parts, (rows, columns) = group["parts"], group["shape"]
            ahead = self.shares.whole(ahead.transpose(0, 1), rows).transpose(0, 1)  # a matrix of which one has some rows alone cannot be made orthogonal
            update = orthogonal(ahead.reshape(len(ours) * parts, rows // parts, columns)).reshape(len(ours), rows, columns)
            update = self.shares.mine(update.transpose(0, 1)).transpose(0, 1)
            update = update.to(kept.dtype) * (group["lr"] * max(1.0, rows / parts / columns) ** 0.5 * good)
            torch._foreach_mul_(ours, 1 - group["lr"] * group["weight_decay"] * good)
            torch._foreach_sub_(ours, list(update.unbind()))

    def _momenta(self, ours: list[Tensor]) -> Tensor:
        """Of these, one above the other; each parameter's state is its part of that."""
        whole = self.state[ours[0]].get("momentum")
        whole = whole._base if whole is not None else None
        if whole is None or len(whole) != len(ours) or any(self.state[p].get("momentum") is None or self.state[p]["momentum"]._base is not whole for p in ours):
            whole = torch.stack([self.state[p].get("momentum", torch.zeros_like(p)) for p in ours])  # the first step, or restored
            for p, part in zip(ours, whole.unbind(), strict=True):
                self.state[p] = {"momentum": part}
        return whole


def orthogonal(matrices: Tensor, rounds: int = 5) -> Tensor:
    """(K, R, C) -> matrices with the same singular vectors, and values near 1, by Newton and Schulz's iteration."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    turned = x.shape[1] > x.shape[2]
    x = x.mT if turned else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) * 1.01 + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(rounds):
        outer = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(outer, outer, outer, beta=b, alpha=c), x, beta=a)
    return x.mT if turned else x


class Optimizers:
    """All of a run's parameters, each in the hands of the optimizer that its rule gives it to."""

    def __init__(self, parameters: Mapping[str, Tensor], config: Optimizer, depth: int, gated: bool = False, shares: Shares | None = None) -> None:
        self.config, self.parameters = config, parameters
        self.shares = shares or Shares({name: p.shape for name, p in parameters.items()})
        rules = {name: rule(name, p, config, depth, gated) for name, p in parameters.items()}
        muon = {name for name, one in rules.items() if one.matrix} if config.name == "muon" else set()
        adam = {"betas": config.betas, "eps": config.epsilon}
        fused = all(p.is_floating_point() for p in parameters.values())
        self.parts: list[torch.optim.Optimizer] = []
        if muon:
            self.parts.append(Muon(self._groups(muon, rules, config.lr), momentum=config.momentum))
        rest = set(parameters) - muon
        if rest:
            groups = list(self._groups(rest, rules, config.rest if muon else config.lr))
            self.parts.append(Lamb(groups, **adam) if config.name == "lamb" else AdamW(groups, **adam, fused=fused))  # type: ignore[arg-type]
        for part in self.parts:
            if isinstance(part, Lamb | Muon):
                part.shares = self.shares

    def _groups(self, chosen: set[str], rules: Mapping[str, Rule], rate: float) -> Iterator[dict[str, Any]]:
        kinds: dict[tuple[Any, ...], list[Tensor]] = defaultdict(list)
        for name, p in self.parameters.items():
            if name in chosen:
                one = rules[name]
                kinds[(one.scale, one.decays, one.parts, tuple(self.shares.shapes[name]) if one.matrix and self.config.name == "muon" else ())].append(p)
        for (scale, decays, parts, shape), found in kinds.items():
            decay = self.config.weight_decay if decays else 0.0
            yield {"params": found, "peak": rate * scale, "lr": rate * scale, "weight_decay": decay, "decays": decays, "parts": parts, "shape": shape}

    def step(self, factor: float, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """One step at that share of the highest rate; gives the gradient's norm before it was clipped, and each tensor's.

        A gradient that is not finite changes nothing. One of a loss that was scaled is brought back.
        """
        norms = torch.stack(torch._foreach_norm([p.grad if p.grad is not None else p.new_zeros(1) for p in self.parameters.values()]))
        norms = self.shares.norms(norms) if scale is None else self.shares.norms(norms) / scale
        norm = norms.norm()
        good = torch.isfinite(norm)
        share = torch.clamp(self.config.clip / (norm + 1e-6), max=1.0) if self.config.clip else torch.ones_like(norm)
        share = share if scale is None else share / scale
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = group["peak"] * factor
            if isinstance(part, AdamW) and part.param_groups[0].get("fused"):
                part.grad_scale, part.found_inf = (1 / share).float(), (~good).float()  # type: ignore[attr-defined]
            elif isinstance(part, Muon):
                part.share = torch.where(good, share, torch.nan)
            elif not good:
                return norm, norms
            elif self.config.clip or scale is not None:
                torch._foreach_mul_([p.grad for group in part.param_groups for p in group["params"] if p.grad is not None], share)
            part.step()
        return norm, norms

    def zero(self) -> None:
        for p in self.parameters.values():
            p.grad = None

    # ---- what a checkpoint keeps

    def state(self) -> dict[str, Tensor]:
        """Every tensor that the optimizers remember, by the parameter's name."""
        names = {id(p): name for name, p in self.parameters.items()}
        kept: dict[str, Tensor] = {}
        for part in self.parts:
            for p, state in part.state.items():
                kept |= {f"{names[id(p)]}/{key}": value for key, value in state.items()}
        return kept

    def restore(self, kept: Mapping[str, Tensor]) -> None:
        states: dict[str, dict[str, Tensor]] = defaultdict(dict)
        for name, value in kept.items():
            owner, _, key = name.rpartition("/")
            states[owner][key] = value
        for part in self.parts:
            for group in part.param_groups:
                for p in group["params"]:
                    found = states.get(next(name for name, one in self.parameters.items() if one is p))
                    if found:
                        found = {key: self.shares.mine(value) for key, value in found.items()}
                        part.state[p] = {key: value.clone() if key == "step" and not _on(part, p) else value.to(p.device) for key, value in found.items()}


def _on(part: torch.optim.Optimizer, p: Tensor) -> bool:
    """Whether a fused optimizer wants its count of steps beside the parameter."""
    return bool(part.param_groups[0].get("fused")) and p.is_cuda
