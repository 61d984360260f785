"""Each optimizer against its paper's formula, step by step; who learns what; and that a step can be left out, or taken after a stop."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from unmask.model import families
from unmask.train.optim import Muon, Optimizer, Optimizers, orthogonal

NAMES = ["adamw", "lamb", "muon"]
DEPTH = 2
SHAPES = {
    "model.embed.words.weight": (20, 8),
    "model.embed.norm.weight": (8,),
    "model.encoder.layers.0.attention.qkv.weight": (24, 8),
    "model.encoder.layers.0.attention.qkv.bias": (24,),
    "model.encoder.layers.0.feed.up.weight": (16, 8),
    "model.encoder.layers.0.feed.down.weight": (8, 16),
    "model.encoder.layers.1.attention.qkv.weight": (24, 8),
    "model.encoder.layers.1.attention.out.weight": (8, 8),
    "model.encoder.layers.1.feed.up.weight": (16, 8),
    "model.encoder.layers.1.feed_norm.bias": (8,),
    "model.encoder.norm.weight": (8,),
    "model.heads.words.dense.weight": (8, 8),
    "model.heads.next.out.weight": (2, 8),
}
MATRICES = [name for name, shape in SHAPES.items() if "layers." in name and len(shape) == 2]
BELOW_THE_TOP = {"embed": 3, "layers.0": 2, "layers.1": 1}  # how many times the rate of a model of two layers is made less; of all else: not once
FACTORS = [1.0, 0.5, 0.25, 0.8, 0.1, 0.6]
SIZES = [1.0, 20.0, 0.01, 5.0, 0.3, 2.0]  # of the gradients, so that some are clipped and some are not
Kept = dict[str, Tensor]


def made(shapes: Mapping[str, tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float64, seed: int = 0) -> Kept:
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=draw, dtype=dtype).requires_grad_() for name, shape in shapes.items()}


def gradients(step: int, like: Mapping[str, Tensor], size: float | None = None) -> Kept:
    """Of a step, always the same; the norm over all of them is about the size."""
    draw = torch.Generator().manual_seed(100 + step)
    found = {name: torch.randn(p.shape, generator=draw, dtype=torch.float64) for name, p in like.items()}
    total = sum(float(one.square().sum()) for one in found.values()) ** 0.5
    return {name: (one * (SIZES[step % 6] if size is None else size) / total).to(like[name].dtype) for name, one in found.items()}


def clipped(found: Mapping[str, Tensor], clip: float) -> Kept:
    """Written out: where the norm of all is above it, they are scaled down to it."""
    norm = sum(float(one.square().sum()) for one in found.values()) ** 0.5
    share = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
    return {name: one * share for name, one in found.items()}


def stepped(optimizers: Optimizers, parameters: Kept, steps: Iterable[int], missing: Mapping[int, str] | None = None) -> None:
    for step in steps:
        optimizers.zero()
        for name, grad in gradients(step, parameters).items():
            if name != (missing or {}).get(step):
                parameters[name].grad = grad
        optimizers.step(FACTORS[step % 6])


def copied(found: Mapping[str, Tensor]) -> Kept:
    return {name: one.detach().clone() for name, one in found.items()}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def far(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    return max(float((one[name] - other[name]).detach().abs().max()) for name in other)


def scale(name: str, decay: float) -> float:
    return decay ** next((times for part, times in BELOW_THE_TOP.items() if part in name), 0)


# ---- AdamW


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-7), (torch.float32, 1e-6)])
@pytest.mark.parametrize("layer_decay", [1.0, 0.7])
@pytest.mark.parametrize("clip", [0.0, 1.0, 3.0])
def test_adamw_is_torchs(clip: float, layer_decay: float, dtype: torch.dtype, near: float) -> None:
    """Its plain one, each parameter a group of its own, and torch's clipping; a large epsilon, so that the size of a gradient matters."""
    config = Optimizer(lr=0.05, betas=(0.8, 0.95), epsilon=0.1, weight_decay=0.3, layer_decay=layer_decay, clip=clip)
    ours, theirs = made(dtype=dtype), made(dtype=dtype)
    optimizers = Optimizers(ours, config, DEPTH)
    groups: list[dict[str, Any]] = [{"params": [p], "weight_decay": 0.3 if len(SHAPES[name]) > 1 else 0.0} for name, p in theirs.items()]
    peer = torch.optim.AdamW(groups, lr=0.05, betas=(0.8, 0.95), eps=0.1, foreach=False, fused=False)
    for step, factor in enumerate(FACTORS):
        for name, grad in gradients(step, ours).items():
            ours[name].grad, theirs[name].grad = grad, grad.clone()
        each = [p.grad.norm() for p in theirs.values() if p.grad is not None]
        norm, norms = optimizers.step(factor)
        expected = torch.nn.utils.clip_grad_norm_(theirs.values(), clip or 1e9)
        for group, name in zip(peer.param_groups, theirs, strict=True):
            group["lr"] = 0.05 * scale(name, layer_decay) * factor
        peer.step()
        assert float(norm) == pytest.approx(float(expected), rel=1e-5), "the norm is that before clipping"
        assert norms.tolist() == pytest.approx([float(one) for one in each], rel=1e-5)
        assert far(ours, theirs) < near


def test_only_matrices_decay() -> None:
    """A gradient of nothing at all: what moves is what decays."""
    for name in ("adamw", "lamb"):
        parameters = made()
        before = copied(parameters)
        for p in parameters.values():
            p.grad = torch.zeros_like(p)
        Optimizers(parameters, Optimizer(name, lr=0.1, weight_decay=0.5), DEPTH).step(1.0)
        assert {one for one in SHAPES if not torch.equal(parameters[one], before[one])} == {one for one, shape in SHAPES.items() if len(shape) == 2}


@pytest.mark.parametrize("name", NAMES)
def test_lower_layers_learn_more_slowly(name: Any) -> None:
    """The first step of each, beside that of the same without: smaller by the decay, once for each layer above."""
    moved = []
    for decay in (1.0, 0.5):
        parameters = made()
        before = copied(parameters)
        stepped(Optimizers(parameters, Optimizer(name, lr=1e-3, layer_decay=decay, weight_decay=0.0), DEPTH), parameters, [0])
        moved.append({one: float((p.detach() - before[one]).norm()) for one, p in parameters.items()})
    assert [moved[1][one] / moved[0][one] for one in SHAPES] == pytest.approx([scale(one, 0.5) for one in SHAPES], rel=1e-4)


# ---- LAMB


def lamb(weights: Kept, steps: int, config: Optimizer, missing: Mapping[int, str]) -> Kept:
    """Algorithm 2 of You et al. 2020, a tensor at a time; phi is the identity."""
    one, two = config.betas
    weights = copied(weights)
    first, second = ({name: torch.zeros_like(w) for name, w in weights.items()} for _ in range(2))
    count = dict.fromkeys(weights, 0)
    for step in range(steps):
        found = gradients(step, weights)
        for name, grad in clipped({name: grad for name, grad in found.items() if name != missing.get(step)}, config.clip).items():
            w, matrix = weights[name], len(SHAPES[name]) > 1
            count[name] += 1
            first[name] = one * first[name] + (1 - one) * grad
            second[name] = two * second[name] + (1 - two) * grad * grad
            m, v = first[name] / (1 - one ** count[name]), second[name] / (1 - two ** count[name])
            update = m / (v.sqrt() + config.epsilon) + (config.weight_decay * w if matrix else 0)
            size, length = float((w * w).sum()) ** 0.5, float((update * update).sum()) ** 0.5
            trust = size / length if matrix and size and length else 1.0
            weights[name] = w - config.lr * scale(name, config.layer_decay) * FACTORS[step % 6] * trust * update
    return weights


@pytest.mark.parametrize("weight_decay", [0.2, 0.0])  # without, matrices are scaled to their norm all the same
@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("missing", [{}, {2: "model.heads.next.out.weight"}])  # a tensor that had no gradient at one step counts its own steps
def test_lamb_is_its_papers(missing: dict[int, str], clip: float, weight_decay: float) -> None:
    config = Optimizer("lamb", lr=0.03, betas=(0.8, 0.95), epsilon=0.1, weight_decay=weight_decay, layer_decay=0.7, clip=clip)
    parameters = made()
    with torch.no_grad():
        parameters["model.heads.words.dense.weight"].zero_()  # its norm says nothing of how far to step
    before = copied(parameters)
    for steps in range(1, 7):
        with torch.no_grad():
            for name, p in parameters.items():
                p.copy_(before[name])
        stepped(Optimizers(parameters, config, DEPTH), parameters, range(steps), missing)
        assert far(parameters, lamb(before, steps, config, missing)) < 1e-12


# ---- Muon


def matrix(rows: int, columns: int, seed: int = 0) -> Tensor:
    """One whose singular values lie between 0.05 and 1."""
    draw = torch.Generator().manual_seed(seed)
    u, _, v = torch.linalg.svd(torch.randn(rows, columns, generator=draw, dtype=torch.float64), full_matrices=False)
    return u * torch.linspace(0.05, 1.0, min(rows, columns), dtype=torch.float64) @ v


def quintic(grad: Tensor) -> Tensor:
    """What five rounds make of a matrix, worked out on its singular values one by one."""
    u, s, v = torch.linalg.svd(grad, full_matrices=False)
    s = s / (float(grad.square().sum()) ** 0.5 * 1.01 + 1e-7)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u * s @ v


SIDES = [(8, 8), (24, 8), (8, 32), (64, 64), (128, 16), (1, 5), (5, 1)]


@pytest.mark.parametrize(("rows", "columns"), SIDES)
def test_singular_values_come_near_1_and_vectors_stay(rows: int, columns: int) -> None:
    found = torch.stack([matrix(rows, columns, seed) for seed in range(3)])
    out = orthogonal(found)
    assert out.shape == found.shape
    for before, after in zip(found, out, strict=True):
        u, _, v = torch.linalg.svd(before, full_matrices=False)
        values = u.mT @ after @ v.mT
        assert float((values - values.diagonal().diag()).abs().max()) < 1e-9
        assert float(values.diagonal().min()) > 0.6
        assert float(values.diagonal().max()) < 1.3
        assert float((after - quintic(before)).abs().max()) < 1e-9


@pytest.mark.parametrize(("rows", "columns"), [(16, 4), (8, 32), (24, 96), (200, 50)])
def test_random_matrices_become_orthogonal_whatever_their_size(rows: int, columns: int) -> None:
    draw = torch.Generator().manual_seed(1)
    found = torch.randn(4, rows, columns, generator=draw)
    for size in (1e-3, 1.0, 1e4):
        values = torch.linalg.svdvals(orthogonal(found * size))
        assert float(values.min()) > 0.6
        assert float(values.max()) < 1.3


def test_no_gradient_is_no_direction() -> None:
    assert float(orthogonal(torch.zeros(2, 4, 4)).abs().max()) == 0


def muon(weight: Tensor, grads: list[Tensor], config: Optimizer) -> Tensor:
    """Jordan et al. 2024: momentum as a running mean, one step ahead (Nesterov), made orthogonal; more rows than columns step further."""
    kept = torch.zeros_like(weight)
    for step, grad in enumerate(grads):
        kept = config.momentum * kept + (1 - config.momentum) * grad
        ahead = (1 - config.momentum) * grad + config.momentum * kept
        rate = config.lr * FACTORS[step % 6]
        weight = weight * (1 - rate * config.weight_decay) - rate * max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5 * quintic(ahead)
    return weight


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_muon_is_its_formula(clip: float, gated: bool) -> None:
    """Query, key and value are three matrices one above the other; what opens and what is opened, in a gated layer, are two."""
    config = Optimizer("muon", lr=0.05, weight_decay=0.1, momentum=0.8, clip=clip)
    parameters = made()
    before = copied(parameters)
    stepped(Optimizers(parameters, config, DEPTH, gated), parameters, range(6))
    found = [clipped(gradients(step, before), clip) for step in range(6)]
    for name in MATRICES:
        parts = 3 if "qkv" in name else 2 if gated and "up" in name else 1
        grads = [one[name].chunk(parts) for one in found]
        expected = torch.cat([muon(w, [grad[i] for grad in grads], config) for i, w in enumerate(before[name].chunk(parts))])
        assert far({name: parameters[name]}, {name: expected}) < 1e-9


@pytest.mark.parametrize(
    ("name", "shape", "gated", "parts"),
    [
        ("attention.qkv.weight", (48, 16), False, 3),
        ("feed.up.weight", (64, 8), True, 2),  # halves that are higher than wide
        ("feed.up.weight", (8, 16), True, 2),
        ("feed.up.weight", (32, 8), False, 1),
        ("attention.out.weight", (16, 16), False, 1),
    ],
)
def test_each_of_several_matrices_is_orthogonal_by_itself(name: str, shape: tuple[int, int], gated: bool, parts: int) -> None:
    """As if each had been learned alone; the whole is not orthogonal then."""
    full = f"encoder.layers.0.{name}"
    grad = torch.cat([matrix(shape[0] // parts, shape[1], seed) * 10.0**seed for seed in range(parts)])
    weight = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    weight.grad = grad.clone()
    Optimizers({full: weight}, Optimizer("muon", lr=1.0, weight_decay=0.0, clip=0.0), 1, gated).step(1.0)
    longer = max(1.0, shape[0] / parts / shape[1]) ** 0.5
    for update, own in zip((-weight.detach() / longer).chunk(parts), grad.chunk(parts), strict=True):
        values = torch.linalg.svdvals(update)
        assert float(values.min()) > 0.6
        assert float(values.max()) < 1.3
        assert float((update - quintic(own)).abs().max()) < 1e-4  # up to what is added to the norm, as the gradient here is the momentum's share of it


def test_matrices_of_a_shape_together_are_as_one_by_one() -> None:
    config = Optimizer("muon", lr=0.05, clip=0.0)
    together = made()
    stepped(Optimizers(together, config, DEPTH), together, range(4))
    sizes = [len(group["params"]) for part in Optimizers(together, config, DEPTH).parts if isinstance(part, Muon) for group in part.param_groups]
    assert sorted(sizes) == [1, 1, 2, 2], "one call for each shape"
    for name in MATRICES:
        alone = {name: made()[name]}
        optimizers = Optimizers(alone, config, DEPTH)
        for step in range(4):
            alone[name].grad = gradients(step, together)[name]
            optimizers.step(FACTORS[step])
        assert far(together, alone) < 1e-12


def test_a_shape_of_which_some_had_no_gradient() -> None:
    name = "model.encoder.layers.0.feed.up.weight"
    parameters = made()
    before = copied(parameters)
    stepped(Optimizers(parameters, Optimizer("muon", lr=0.05, clip=0.0), DEPTH), parameters, [0], {0: name})
    assert [torch.equal(parameters[one], before[one]) for one in MATRICES] == [one == name for one in MATRICES]


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "electra", "modernbert"])
def test_muon_learns_the_matrices_of_layers_alone(family: str) -> None:
    """Not words, positions, heads or the pooler, whose rows are words and answers; nor what is no matrix."""
    shape = next(iter(families.family(family).shapes.values()))
    with torch.device("meta"):
        model = families.build(shape.with_heads(words=100))
    parameters = {f"model.{name}": p for name, p in model.named_parameters()}
    optimizers = Optimizers(parameters, Optimizer("muon", lr=0.02, rest=0.003, weight_decay=0.1), shape.encoder.depth, family == "modernbert")
    names = {id(p): name for name, p in parameters.items()}
    held = [{names[id(p)]: group for group in part.param_groups for p in group["params"]} for part in optimizers.parts]
    kinds = ("attention.qkv.weight", "attention.out.weight", "feed.up.weight", "feed.down.weight")
    assert set(held[0]) == {name for name in parameters if name.endswith(kinds)}
    assert len(held[0]) == 4 * shape.encoder.layers
    assert sum(len(group["params"]) for part in optimizers.parts for group in part.param_groups) == len(parameters), "each is learned once"
    assert set(held[0]) | set(held[1]) == set(parameters)
    assert {group["peak"] for group in held[0].values()} == {0.02}
    assert {group["peak"] for group in held[1].values()} == {0.003}
    for name, group in (held[0] | held[1]).items():
        assert group["weight_decay"] == (0.1 if parameters[name].ndim > 1 else 0.0), name
        assert group["parts"] == (3 if name.endswith("qkv.weight") else 2 if family == "modernbert" and name.endswith("up.weight") else 1), name


def test_what_muon_does_not_learn_adamw_does() -> None:
    config = Optimizer("muon", lr=0.05, rest=0.01, weight_decay=0.1)
    one, other = made(), made()
    stepped(Optimizers(one, config, DEPTH), one, range(4))
    stepped(Optimizers(other, replace(config, name="adamw", lr=0.01), DEPTH), other, range(4))
    assert {name for name in SHAPES if torch.equal(one[name], other[name])} == set(SHAPES) - set(MATRICES)


# ---- of each


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("where", ["model.embed.words.weight", "model.encoder.layers.1.feed.up.weight", "model.encoder.norm.weight"])
@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_that_is_not_finite_changes_nothing(name: Any, clip: float, where: str, bad: float) -> None:
    """Neither weights nor what is remembered, in its own tensor or in others; and it goes on as if that step had not been."""
    config = Optimizer(name, lr=0.05, rest=0.05, clip=clip)
    parameters, never = made(dtype=torch.float32), made(dtype=torch.float32)
    optimizers, without = Optimizers(parameters, config, DEPTH), Optimizers(never, config, DEPTH)
    stepped(optimizers, parameters, [0, 1])
    weights, state = copied(parameters), copied(optimizers.state())
    for one, grad in gradients(2, parameters).items():
        parameters[one].grad = grad
    parameters[where].grad.view(-1)[3] = bad  # type: ignore[union-attr]
    norm, norms = optimizers.step(1.0)
    assert not torch.isfinite(norm)
    assert [one for one, size in zip(parameters, norms, strict=True) if not torch.isfinite(size)] == [where]
    assert same(copied(parameters), weights)
    assert same(optimizers.state(), state)
    stepped(optimizers, parameters, [3, 4])
    stepped(without, never, [0, 1, 3, 4])
    assert same(copied(parameters), copied(never))


@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_a_loss_that_was_scaled_learns_the_same(name: Any, clip: float) -> None:
    """The scale is a power of two: not a bit is another one, of weights, of what is remembered, or of the norms."""
    config = Optimizer(name, lr=0.05, rest=0.05, clip=clip)
    plain, scaled = made(dtype=torch.float32), made(dtype=torch.float32)
    one, other = Optimizers(plain, config, DEPTH), Optimizers(scaled, config, DEPTH)
    for step in range(4):
        scale = torch.tensor(2.0 ** (10 + step))
        for key, grad in gradients(step, plain).items():
            plain[key].grad, scaled[key].grad = grad, grad * scale
        (norm, norms), (theirs, all_theirs) = one.step(FACTORS[step]), other.step(FACTORS[step], scale)
        assert torch.equal(norm, theirs)
        assert torch.equal(norms, all_theirs)
        assert same(copied(plain), copied(scaled))
        assert same(one.state(), other.state())


@pytest.mark.parametrize("name", NAMES)
def test_a_first_gradient_that_is_not_finite_changes_nothing(name: Any) -> None:
    parameters = made(dtype=torch.float32)
    before = copied(parameters)
    optimizers = Optimizers(parameters, Optimizer(name, lr=0.05), DEPTH)
    for p in parameters.values():
        p.grad = torch.full_like(p, float("nan"))
    optimizers.step(1.0)
    assert same(copied(parameters), before)
    assert all(not bool(value.any()) for value in optimizers.state().values())


@pytest.mark.parametrize("stop", [0, 1, 3])
@pytest.mark.parametrize(("name", "dtype"), list(itertools.product(NAMES, [torch.float32, torch.float64])))
def test_stopped_and_restored_it_goes_on_to_the_bit(name: Any, dtype: torch.dtype, stop: int) -> None:
    config = Optimizer(name, lr=0.05, rest=0.05, layer_decay=0.9)
    missing = {1: "model.heads.next.out.weight"}  # which is then behind the others
    whole = made(dtype=dtype)
    stepped(Optimizers(whole, config, DEPTH, gated=True), whole, range(6), missing)
    first = made(dtype=dtype)
    optimizers = Optimizers(first, config, DEPTH, gated=True)
    stepped(optimizers, first, range(stop), missing)
    kept = copied(optimizers.state())
    second = {one: p.requires_grad_() for one, p in copied(first).items()}
    again = Optimizers(second, config, DEPTH, gated=True)
    again.restore(kept)
    assert same(again.state(), kept)
    stepped(again, second, range(stop, 6), missing)
    assert same(copied(second), copied(whole))
    forgot = {one: p.requires_grad_() for one, p in copied(first).items()}
    stepped(Optimizers(forgot, config, DEPTH, gated=True), forgot, range(stop, 6), missing)
    assert same(copied(forgot), copied(whole)) == (stop == 0), "what is remembered matters"


def test_what_is_remembered_is_named_after_the_parameter() -> None:
    for name, kinds in (("adamw", {"step", "exp_avg", "exp_avg_sq"}), ("lamb", {"step", "exp_avg", "exp_avg_sq"})):
        parameters = made()
        optimizers = Optimizers(parameters, Optimizer(name), DEPTH)  # type: ignore[arg-type]
        assert optimizers.state() == {}
        stepped(optimizers, parameters, [0])
        assert set(optimizers.state()) == {f"{one}/{kind}" for one in SHAPES for kind in kinds}
    parameters = made()
    optimizers = Optimizers(parameters, Optimizer("muon"), DEPTH)
    stepped(optimizers, parameters, [0])
    assert {one.rpartition("/")[0] for one in optimizers.state() if one.endswith("/momentum")} == set(MATRICES)


def test_zero_forgets_gradients() -> None:
    parameters = made()
    optimizers = Optimizers(parameters, Optimizer(), DEPTH)
    stepped(optimizers, parameters, [0])
    assert all(p.grad is not None for p in parameters.values())
    optimizers.zero()
    assert all(p.grad is None for p in parameters.values())
