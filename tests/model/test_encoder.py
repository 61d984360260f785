"""The encoder against a second one written out for a single sequence in float64, under every option."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from unmask.model.encoder import ACTIVATIONS, Encoder, EncoderConfig
from unmask.model.layout import ANTICAUSAL, CAUSAL, FULL, Layout, Packed, Padded, Reach, Recording, local

LENGTHS = (9, 1, 5, 5, 12)
PLAIN = EncoderConfig(width=24, depth=4, heads=3, hidden=40)
PRE = replace(PLAIN, norm="pre")
OPTIONS: dict[str, EncoderConfig] = {
    "post": PLAIN,
    "pre": PRE,
    "epsilon": replace(PLAIN, epsilon=0.5),
    "gated": replace(PLAIN, gated=True),
    "rotary": replace(PLAIN, rotary=(10_000.0,)),
    "several bases": replace(PLAIN, rotary=(100.0, 10_000.0, 3.0)),
    "causal": replace(PLAIN, reach=(CAUSAL,)),
    "reach in turn": replace(PLAIN, reach=(FULL, local(2), (1, 3))),
    "rotary and reach in turn": replace(PRE, rotary=(160_000.0, 10_000.0, 10_000.0), reach=(FULL, local(2), local(2))),
    "one layer shared": replace(PLAIN, distinct=1),
    "two layers shared": replace(PLAIN, depth=5, distinct=2),
    "no attention bias": replace(PLAIN, attention_bias=False),
    "no output bias": replace(PLAIN, output_bias=False),
    "no feed bias": replace(PLAIN, feed_bias=False),
    "no norm bias": replace(PLAIN, norm_bias=False),
    "no first norm": replace(PRE, first_norm=False),
    "query-key norm": replace(PLAIN, query_key_norm=True),
    "attention gate": replace(PLAIN, attention_gate=True),
    "ModernBERT": replace(
        PRE,
        gated=True,
        rotary=(160_000.0, 10_000.0, 10_000.0),
        reach=(FULL, local(3), local(3)),
        attention_bias=False,
        output_bias=False,
        feed_bias=False,
        norm_bias=False,
        first_norm=False,
    ),
    "everything": replace(
        PRE, gated=True, rotary=(50.0, 500.0), reach=(local(4), CAUSAL, ANTICAUSAL), distinct=2, query_key_norm=True, attention_gate=True, activation="silu"
    ),
    **{f"activation {name}": replace(PLAIN, activation=name) for name in ACTIVATIONS},
}
every_option = pytest.mark.parametrize("config", OPTIONS.values(), ids=OPTIONS.keys())


def make(config: EncoderConfig, seed: int = 0) -> Encoder:
    """Weights far from their start, norms and biases too, each drawn by its name so that two configs share what they share."""
    encoder = Encoder(config).eval()
    with torch.no_grad():
        for name, tensor in encoder.named_parameters():
            draw = torch.Generator().manual_seed(seed + sum(map(ord, name)))
            noise = torch.randn(tensor.shape, generator=draw)
            tensor.copy_(1 + 0.3 * noise if "norm" in name and name.endswith("weight") else 0.3 * noise)
    return encoder


def rows(lengths: Sequence[int] = LENGTHS, width: int = 24, seed: int = 1) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(length, width, generator=draw) for length in lengths]


def packed(given: Sequence[Tensor]) -> tuple[Tensor, Tensor, Layout]:
    return torch.cat(list(given)), torch.cat([torch.arange(len(row)) for row in given]), Packed.of([len(row) for row in given])


def padded(given: Sequence[Tensor]) -> tuple[Tensor, Tensor, Layout]:
    width = max(map(len, given)) + 2
    x = torch.full((len(given), width, given[0].shape[-1]), 7.0, dtype=given[0].dtype)
    for i, row in enumerate(given):
        x[i, : len(row)] = row
    mask = torch.arange(width)[None] < torch.tensor([len(row) for row in given])[:, None]
    return x, torch.arange(width).expand(len(given), -1), Padded(len(given), width, mask)


# ---- the second implementation

SQUASH: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: x.clamp(min=0),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "tanh": lambda x: 1 - 2 / (torch.exp(2 * x) + 1),
}
SQUASH |= dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), SQUASH["gelu_tanh"]) | {"swish": SQUASH["silu"]}


def dense(x: Tensor, weights: Mapping[str, Tensor], name: str) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", torch.zeros(1).to(x))


def norm(x: Tensor, weights: Mapping[str, Tensor], name: str, epsilon: float) -> Tensor:
    if f"{name}.weight" not in weights:
        return x
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + epsilon).sqrt()
    return scaled * weights[f"{name}.weight"] + weights.get(f"{name}.bias", torch.zeros(1).to(x))


def turned(x: Tensor, base: float, positions: Tensor) -> Tensor:
    """Rotary as the paper has it: complex numbers, multiplied by exp(i m theta). The pairs are (j, j + H/2)."""
    half = x.shape[-1] // 2
    numbers = torch.complex(x[:, :half], x[:, half:])
    theta = base ** (-torch.arange(half, dtype=torch.float64) * 2 / x.shape[-1])
    numbers = numbers * torch.polar(torch.ones(1, dtype=torch.float64), positions.double()[:, None] * theta)
    return torch.cat([numbers.real, numbers.imag], -1)


def attention(x: Tensor, weights: Mapping[str, Tensor], name: str, config: EncoderConfig, reach: Reach, base: float | None, positions: Tensor) -> Tensor:
    size, out = config.width // config.heads, []
    q, k, v = dense(x, weights, f"{name}.qkv").split(config.width, -1)
    for head in range(config.heads):
        one, two, three = (t[:, head * size : (head + 1) * size] for t in (q, k, v))
        if config.query_key_norm:
            one, two = (t / t.square().mean(-1, keepdim=True).sqrt() for t in (one, two))
        if base is not None:
            one, two = turned(one, base, positions), turned(two, base, positions)
        ahead = torch.arange(len(x))[None, :] - torch.arange(len(x))[:, None]
        seen = torch.ones_like(ahead, dtype=torch.bool)
        if reach[0] >= 0:
            seen &= ahead >= -reach[0]
        if reach[1] >= 0:
            seen &= ahead <= reach[1]
        scores = (one @ two.T / math.sqrt(size)).exp() * seen
        out.append(scores / scores.sum(-1, keepdim=True) @ three)
    mixed = torch.cat(out, -1)
    if config.attention_gate:
        mixed = mixed / (1 + torch.exp(-dense(x, weights, f"{name}.gate")))
    return dense(mixed, weights, f"{name}.out")


def feed(x: Tensor, weights: Mapping[str, Tensor], name: str, config: EncoderConfig) -> Tensor:
    inner, squash = dense(x, weights, f"{name}.up"), SQUASH[config.activation]
    inner = squash(inner[:, : config.hidden]) * inner[:, config.hidden :] if config.gated else squash(inner)
    return dense(inner, weights, f"{name}.down")


def reference(encoder: Encoder, x: Tensor) -> Tensor:
    """One sequence, (S, D) in float64."""
    config, weights = encoder.config, {name: p.detach().double() for name, p in encoder.named_parameters()}
    positions = torch.arange(len(x))
    for i in range(config.depth):
        layer = f"layers.{i * (config.distinct or config.depth) // config.depth}"
        reach = config.reach[i % len(config.reach)]
        base = config.rotary[i % len(config.rotary)] if config.rotary else None
        if config.norm == "post":
            x = norm(x + attention(x, weights, f"{layer}.attention", config, reach, base, positions), weights, f"{layer}.attention_norm", config.epsilon)
            x = norm(x + feed(x, weights, f"{layer}.feed", config), weights, f"{layer}.feed_norm", config.epsilon)
        else:
            inner = norm(x, weights, f"{layer}.attention_norm", config.epsilon)
            x = x + attention(inner, weights, f"{layer}.attention", config, reach, base, positions)
            x = x + feed(norm(x, weights, f"{layer}.feed_norm", config.epsilon), weights, f"{layer}.feed", config)
    return norm(x, weights, "norm", config.epsilon) if config.norm == "pre" else x


# ---- values


@every_option
@torch.no_grad()
def test_values_are_those_of_the_second_implementation(config: EncoderConfig) -> None:
    encoder, given = make(config), [row.double() for row in rows()]
    expected = torch.cat([reference(encoder, row) for row in given])
    for lay in (packed, padded):
        x, positions, layout = lay(given)
        found = layout.tokens(encoder.double()(x, positions, layout))
        # Angles are float32 on purpose, so rotary cannot be closer than that.
        assert (found - expected).abs().max() < (1e-5 if config.rotary else 1e-10)


@every_option
@torch.no_grad()
def test_packed_is_padded(config: EncoderConfig) -> None:
    encoder, outs = make(config), []
    for lay in (packed, padded):
        x, positions, layout = lay(rows())
        outs.append(layout.tokens(encoder(x, positions, layout)))
    assert (outs[0] - outs[1]).abs().max() < 1e-5


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in ("post", "activation gelu")])
@torch.no_grad()
def test_every_option_matters(name: str) -> None:
    """With the same weights under the same names, the answer is another one."""
    x, positions, layout = packed(rows())
    plain = PRE if name == "no first norm" else PLAIN
    assert (make(OPTIONS[name])(x, positions, layout) - make(plain)(x, positions, layout)).abs().max() > 1e-3


def test_every_field_is_under_test() -> None:
    """A new field of the config wants a line in OPTIONS."""
    changed = {field.name for config in OPTIONS.values() for field in fields(EncoderConfig) if getattr(config, field.name) != getattr(PLAIN, field.name)}
    assert {field.name for field in fields(EncoderConfig)} - changed == {"width", "heads", "hidden", "dropout", "attention_dropout"}


@every_option
def test_no_parameter_is_dead(config: EncoderConfig) -> None:
    encoder = make(config)
    x, positions, layout = packed(rows())
    out = encoder(x, positions, layout)
    (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(5))).sum().backward()
    dead = []
    for name, tensor in encoder.named_parameters():
        assert tensor.grad is not None, name
        parts = tensor.grad.chunk(3) if "qkv.weight" in name else tensor.grad.chunk(2) if "feed.up" in name else [tensor.grad]
        dead += [name for part in parts if not part.abs().max() > 1e-6]
    assert not dead


@every_option
@torch.no_grad()
def test_states(config: EncoderConfig) -> None:
    """What enters, and what leaves each layer: each state is what a shallower encoder gives, the last is forward's."""
    encoder = make(config)
    x, positions, layout = packed(rows())
    states = list(encoder.states(x, positions, layout))
    assert len(states) == config.depth + 1
    assert torch.equal(states[0], x)
    assert torch.equal(states[-1], encoder(x, positions, layout))
    moved = [(one - two).abs().max() for one, two in itertools.pairwise(states)]
    assert min(moved) > 1e-2, "every layer does something"
    if not config.distinct:
        short = Encoder(replace(config, depth=2)).eval()
        short.load_state_dict({name: tensor for name, tensor in encoder.state_dict().items() if not name.startswith(("layers.2", "layers.3"))})
        last = encoder.norm(states[2])  # the identity, where the norm is post
        assert torch.equal(short(x, positions, layout), last)


# ---- rotary positions


@pytest.mark.parametrize("base", [10_000.0, 160_000.0, 7.0])
@torch.no_grad()
def test_rotary_positions_are_relative(base: float) -> None:
    """Only distances count: shift every position, and no score moves."""
    encoder = make(replace(PLAIN, rotary=(base,)))
    x, positions, layout = packed(rows(lengths=(40, 17)))
    found = []
    for shift in (0, 1, 37, 400):
        recording = Recording(layout)
        out = encoder(x, positions + shift, recording)
        found.append((torch.cat([maps.flatten() for layer in recording.maps for maps in layer]), out))
    for maps, out in found[1:]:
        assert (maps - found[0][0]).abs().max() < 1e-4
        assert (out - found[0][1]).abs().max() < 1e-3
    stretched = encoder(x, positions * 2, layout)
    assert (stretched - found[0][1]).abs().max() > 1e-2, "distances do count"


@torch.no_grad()
def test_without_rotary_positions_are_not_looked_at() -> None:
    x, _, layout = packed(rows())
    assert torch.equal(make(PLAIN)(x, None, layout), make(PLAIN)(x, torch.arange(len(x)), layout))


@torch.no_grad()
def test_rotary_angles_stay_float32_in_bf16() -> None:
    """At position 500 bf16 is off by whole radians; only the answer may be rounded."""
    encoder = make(replace(PLAIN, depth=1, rotary=(10_000.0,)))
    x, positions, layout = packed(rows(lengths=(12,)))
    exact = encoder(x, positions + 500, layout)
    half = encoder.bfloat16()(x.bfloat16(), positions + 500, layout)
    assert half.dtype == torch.bfloat16
    assert (half.float() - exact).abs().max() < 0.1


# ---- layers that share their weights


def count(encoder: Encoder) -> int:
    return sum(p.numel() for p in encoder.parameters())


@pytest.mark.parametrize(("depth", "distinct", "turn"), [(4, 1, (0, 0, 0, 0)), (6, 2, (0, 0, 0, 1, 1, 1)), (5, 2, (0, 0, 0, 1, 1)), (3, 3, (0, 1, 2))])
@torch.no_grad()
def test_shared_layers(depth: int, distinct: int, turn: tuple[int, ...]) -> None:
    """As many parameters as there are layers of their own, and the answer of an encoder whose layers were set equal."""
    shared, whole = make(replace(PLAIN, depth=depth, distinct=distinct)), Encoder(replace(PLAIN, depth=depth)).eval()
    assert count(shared) == count(Encoder(replace(PLAIN, depth=distinct)))
    for layer, source in zip(whole.layers, turn, strict=True):
        layer.load_state_dict(shared.layers[source].state_dict())
    x, positions, layout = packed(rows())
    assert torch.equal(shared(x, positions, layout), whole(x, positions, layout))


def test_parameters_by_hand() -> None:
    width, hidden = 24, 40
    layer = 4 * (width * width + width) + 2 * width * hidden + hidden + width + 4 * width
    assert count(Encoder(PLAIN)) == 4 * layer
    assert count(Encoder(PRE)) == 4 * layer + 2 * width
    assert count(Encoder(replace(PRE, first_norm=False))) == 4 * layer
    assert count(Encoder(replace(PLAIN, gated=True))) == 4 * (layer + width * hidden + hidden)
    assert count(Encoder(replace(PLAIN, attention_gate=True))) == 4 * (layer + width * width + width)
    assert count(Encoder(replace(PLAIN, query_key_norm=True, rotary=(3.0,)))) == 4 * layer
    bare = replace(PLAIN, attention_bias=False, output_bias=False, feed_bias=False, norm_bias=False)
    assert count(Encoder(bare)) == 4 * (4 * width * width + 2 * width * hidden + 2 * width)
    assert not [name for name, _ in Encoder(bare).named_parameters() if name.endswith("bias")]


# ---- dropout


@pytest.mark.parametrize("given", [{"dropout": 0.3}, {"attention_dropout": 0.3}], ids=lambda given: next(iter(given)))
@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_dropout_is_on_in_training_only(norm: Any, given: dict[str, float]) -> None:
    x, positions, layout = packed(rows())
    config = replace(PLAIN, norm=norm)
    plain, encoder = make(config), make(replace(config, **given))
    expected = plain(x, positions, layout)
    assert torch.equal(encoder(x, positions, layout), expected)
    assert torch.equal(plain.train()(x, positions, layout), expected)
    encoder.train()
    torch.manual_seed(0)
    one, two = encoder(x, positions, layout), encoder(x, positions, layout)
    torch.manual_seed(0)
    assert torch.equal(encoder(x, positions, layout), one)
    assert (one - expected).abs().max() > 1e-2
    assert (one - two).abs().max() > 1e-2


@torch.no_grad()
def test_all_dropped_leaves_what_came_in() -> None:
    """Dropout stands on both halves before they are added, nowhere else."""
    x, positions, layout = packed(rows())
    pre = make(replace(PRE, dropout=1.0)).train()
    assert torch.equal(pre(x, positions, layout), pre.norm(x))
    post = make(replace(PLAIN, depth=1, dropout=1.0)).train()
    assert torch.equal(post(x, positions, layout), post.layers[0].feed_norm(post.layers[0].attention_norm(x)))


# ---- what cannot be


BAD: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "width by heads": ({"width": 100, "heads": 12}, ("100", "12")),
    "activation": ({"activation": "geluu"}, ("geluu", "gelu")),
    "more layers of their own than layers": ({"distinct": 5, "depth": 4}, ("5", "4")),
    "rotary needs an even head": ({"width": 15, "heads": 3, "rotary": (10_000.0,)}, ("15", "3")),
    "no heads": ({"heads": 0}, ("24", "0")),
}


@pytest.mark.parametrize(("given", "said"), BAD.values(), ids=BAD.keys())
def test_bad_configs_name_both_numbers(given: dict[str, Any], said: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"\b.*\b".join(said)):
        replace(PLAIN, **given)
