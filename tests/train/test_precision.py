"""What is computed in bf16 or fp16 is learned in float32, nothing is counted twice, and the scale of fp16 finds its place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import runs
from unmask.model import families
from unmask.model.model import parameters
from unmask.train import precision
from unmask.train.precision import Precision, chosen

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5), nn.Linear(5, 3))


@pytest.mark.parametrize("kind", DTYPES)
def test_in_which_numbers(kind: str) -> None:
    module = small()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    found = Precision(module, kind)
    inside = dict(module.named_parameters())
    assert {p.dtype for p in inside.values()} == {DTYPES[kind]}
    assert list(found.masters) == list(before)
    for name, master in found.masters.items():
        assert master.is_leaf
        assert master.requires_grad
        assert torch.equal(master.to(before[name].dtype), before[name]), "not a bit is lost"
        assert master.dtype == (torch.float64 if kind == "float64" else torch.float32)
        assert (master is inside[name]) == (kind in ("float32", "float64"))
        assert master.data_ptr() != before[name].data_ptr()


def test_gradients_add_up_in_float32() -> None:
    """To the bit what float32 makes of the bf16 gradients; in bf16 the small ones would be lost."""
    module = small()
    found = Precision(module, "bf16")
    expected = {name: torch.zeros_like(master) for name, master in found.masters.items()}
    lossy = {name: p.detach().clone().zero_() for name, p in module.named_parameters()}
    draw = torch.Generator().manual_seed(1)
    for size in (1.0, 0.01, 0.003, 30.0, 0.001):
        module(size * torch.randn(4, 7, generator=draw).bfloat16()).square().sum().backward()
        for name, p in module.named_parameters():
            assert p.grad is not None
            expected[name] += p.grad.float()
            lossy[name] += p.grad
        found.gather()
        assert all(p.grad is None for p in module.parameters()), "what was gathered is not gathered again"
    for name, master in found.masters.items():
        assert master.grad is not None
        assert master.grad.dtype == torch.float32
        assert torch.equal(master.grad, expected[name])
    assert any(not torch.equal(lossy[name].float(), expected[name]) for name in lossy)


def test_a_part_that_had_no_gradient_has_none() -> None:
    """A head that the first of two batches did not use; and one that none did."""
    module = nn.ModuleDict({name: nn.Linear(2, 1, bias=False) for name in ("both", "second", "none")})
    found = Precision(module, "bf16")
    x = torch.ones(1, 2, dtype=torch.bfloat16)
    module["both"](x).sum().backward()
    found.gather()
    assert found.masters["second.weight"].grad is None
    (module["both"](x) + 2 * module["second"](x)).sum().backward()
    found.gather()
    grads = {name: None if master.grad is None else master.grad.tolist() for name, master in found.masters.items()}
    assert grads == {"both.weight": [[2.0, 2.0]], "second.weight": [[2.0, 2.0]], "none.weight": None}


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_where_nothing_is_copied_nothing_moves(kind: str) -> None:
    module = small()
    found = Precision(module, kind)
    module(torch.ones(2, 7, dtype=DTYPES[kind])).sum().backward()
    before = {name: (p.detach().clone(), None if p.grad is None else p.grad.clone()) for name, p in module.named_parameters()}
    found.gather()
    found.publish()
    for name, p in module.named_parameters():
        assert torch.equal(p, before[name][0])
        assert p.grad is not None
        assert torch.equal(p.grad, before[name][1])  # type: ignore[arg-type]


def test_steps_too_small_for_bf16_are_learned() -> None:
    """Near 1 the next bf16 number is 1/128 away: a hundred steps of 1/1,000 would leave a copy where it was."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.ones_(module.weight)
    found = Precision(module, "bf16")
    here = module.weight
    for _ in range(100):
        with torch.no_grad():
            found.masters["weight"] += 1 / 1000
        found.publish()
    assert module.weight is here, "written in place: compiled code and optimizers hold on to it"
    assert module.weight.dtype == torch.bfloat16
    assert module.weight.item() == pytest.approx(1.1, abs=1 / 256)
    assert torch.equal(module.weight, found.masters["weight"].bfloat16())


@pytest.mark.parametrize("kind", DTYPES)
def test_what_is_shared_is_learned_once(kind: str) -> None:
    """The word head predicts with the matrix that embeds; its gradient comes from both, and is there once."""
    model = families.new(runs.shape().with_heads(words=400))
    count = parameters(model)
    found = Precision(model, kind)
    assert sum(master.numel() for master in found.masters.values()) == count
    assert "heads.words.decoder.weight" not in found.masters
    head: Any = model.heads["words"]
    assert head.decoder.weight is model.embed.words.weight  # still
    words = model.embed.words.weight
    (words.sum() + 2 * head.decoder.weight.sum()).backward()
    found.gather()
    grad = found.masters["embed.words.weight"].grad
    assert grad is not None
    assert bool((grad == 3).all())
    with torch.no_grad():
        found.masters["embed.words.weight"].fill_(0.5)
    found.publish()
    assert bool((head.decoder.weight == 0.5).all())


def test_what_auto_means(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen("auto", torch.device("cpu")) == "float32"
    assert [chosen(kind, torch.device(device)) for kind in DTYPES for device in ("cpu", "cuda")] == [kind for kind in DTYPES for _ in range(2)]
    for able, kind in ((True, "bf16"), (False, "fp16")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, able=able: able)
        assert chosen("auto", torch.device("cuda")) == kind
        assert chosen("auto", torch.device("cpu")) == "float32", "whatever GPU stands beside it"


# ---- the scale of fp16's loss


def judged(found: Precision, *norms: float) -> list[float]:
    """What is left to complain of after a step with these norms."""
    return found.judged(torch.tensor(norms)).tolist()


def scale(found: Precision) -> float:
    assert found.scale is not None
    return found.scale.item()


def test_gradients_that_fp16_would_lose_are_kept() -> None:
    """Of 1e-9 each; the smallest number is 6e-8. What stands in the masters is divided again where it is used."""
    module = nn.Linear(4, 1, bias=False)
    found = Precision(module, "fp16")
    x = torch.full((1, 4), 1e-3, dtype=torch.float16)
    (module(x).float().sum() * 1e-6).backward()
    found.gather()
    assert found.masters["weight"].grad is not None
    assert found.masters["weight"].grad.abs().max() == 0
    found.scaled(module(x).float().sum() * 1e-6).backward()
    found.gather()
    assert (found.masters["weight"].grad / scale(found)).tolist()[0] == pytest.approx([1e-9] * 4, rel=1e-2)


def test_the_scale_follows_the_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "PATIENCE", 3)
    found = Precision(small(), "fp16")
    assert scale(found) == 2.0**16
    for _ in range(2):
        assert judged(found, 1.0, 2.0) == [1.0, 2.0]
        assert scale(found) == 2.0**16
    assert judged(found, 1.0, 1.0) == [1.0, 1.0]
    assert scale(found) == 2.0**17, "three good steps double it"
    judged(found, 1.0, 1.0)
    assert judged(found, 5.0, float("inf")) == [5.0, 0.0], "a smaller scale mends that"
    assert scale(found) == 2.0**16
    for _ in range(2):
        judged(found, 1.0, 1.0)
    assert scale(found) == 2.0**16, "good steps are counted from the last bad one"
    for _ in range(16):
        assert judged(found, float("nan"), 1.0) == [0.0, 1.0]
    assert scale(found) == 1
    assert str(judged(found, float("nan"), 1.0)) == "[nan, 1.0]", "and where nothing is scaled, nothing mends it"
    assert scale(found) == 1


@pytest.mark.parametrize("kind", ["float32", "bf16"])
def test_other_numbers_are_not_scaled(kind: str) -> None:
    found = Precision(small(), kind)
    loss = torch.tensor(3.0)
    assert found.scaled(loss) is loss
    assert judged(found, float("inf"), 1.0) == [float("inf"), 1.0]
    assert found.state() == {}
    found.restore({"scale": torch.tensor(8.0), "good": torch.tensor(1, dtype=torch.int32)})
    assert found.scale is None


def test_the_scale_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "PATIENCE", 5)
    found, other = Precision(small(), "fp16"), Precision(small(), "fp16")
    for norm in (1.0, float("inf"), 1.0, 1.0, 1.0):
        judged(found, norm)
    other.restore({name: one.clone() for name, one in found.state().items()})
    for norm in (1.0, 1.0, 1.0, float("inf")):
        judged(found, norm)
        judged(other, norm)
        assert scale(found) == scale(other)
    assert scale(other) == 2.0**15
    other.restore({})  # of a run that was not in fp16 until now
    assert scale(other) == 2.0**15
