"""What every family keeps, whichever it is: a new file in model/families is held to this with nothing written here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from unmask.model import families, store
from unmask.model.card import Card, Image
from unmask.model.embed import ImageConfig, TextConfig
from unmask.model.layout import Packed, Padded
from unmask.model.model import Model, ModelConfig
from unmask.model.weights import named_tensors
from unmask.tokenizer import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"]


def tiny(name: str) -> ModelConfig:
    """The family's first shape, made small in what every shape has."""
    config = next(iter(families.family(name).shapes.values()))
    small = replace(config.embed, vocabulary=12, positions=16, dropout=0.0) if isinstance(config.embed, TextConfig) else replace(config.embed, size=(32, 32))
    return replace(config, embed=small, encoder=replace(config.encoder, width=64, heads=2, hidden=96, depth=2, dropout=0.0, attention_dropout=0.0))


EVERY = [(name, architecture) for name in families.names() for architecture in families.family(name).architectures]


@pytest.fixture(params=EVERY, ids=lambda pair: pair[1])
def model(request: pytest.FixtureRequest) -> Model:
    name, architecture = request.param
    heads = families.family(name).architectures[architecture]
    config = tiny(name)
    counts = {head: config.embed.vocabulary if head == "words" and isinstance(config.embed, TextConfig) else store.FIXED.get(head, 2) for head in heads}
    return families.new(replace(config.with_heads(**counts), pooler=False), seed=1)


def inputs(model: Model) -> tuple[dict[str, torch.Tensor], list[int]]:
    draw = torch.Generator().manual_seed(0)
    if isinstance(model.config.embed, ImageConfig):
        size = model.config.embed
        return {"pixels": torch.randn(2, size.channels, *size.size, generator=draw)}, [size.extra + size.grid[0] * size.grid[1]] * 2
    return {"tokens": torch.randint(0, 12, (2, 9), generator=draw), "positions": torch.arange(9).expand(2, 9)}, [9, 9]


@pytest.mark.parametrize("name", families.names())
def test_a_config_goes_both_ways(name: str) -> None:
    kind = families.family(name)
    for config in kind.shapes.values():
        again = kind.read(kind.write(config))
        assert replace(again, pooler=config.pooler) == config


@pytest.mark.parametrize("name", families.names())
def test_published_shapes_are_named_and_recognised(name: str) -> None:
    kind = families.family(name)
    for size, config in kind.shapes.items():
        assert families.shape(f"{name}.{size}") is config
    assert families.recognise(kind.write(next(iter(kind.shapes.values())))) is kind
    assert families.recognise({"architectures": [next(iter(kind.architectures))]}) is kind


def test_every_parameter_has_a_name_of_its_own(model: Model) -> None:
    kind = families.family(model.config.family)
    names = [name for ours, _ in model.named_parameters() for name in kind.theirs(ours)]
    assert len(names) == len(set(names))
    assert len(named_tensors(model)) == len(names)


def test_every_parameter_learns(model: Model) -> None:
    given, lengths = inputs(model)
    layout = Padded(len(lengths), lengths[0])
    rows = model(given, layout)
    loss = rows.square().sum() + sum(model.read(head, rows, layout).square().sum() for head in model.heads)
    loss.backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]


@torch.inference_mode()
def test_packed_is_padded(model: Model) -> None:
    given, lengths = inputs(model)
    padded, packed = Padded(len(lengths), lengths[0]), Packed.of(lengths)
    flat = {name: one if name == "pixels" else one.flatten(0, 1) for name, one in given.items()}
    one, two = model.eval()(given, padded), model(flat, packed)
    assert (padded.tokens(one) - packed.tokens(two)).abs().max() < 1e-5
    for head in model.heads:
        difference = model.read(head, one, padded).flatten() - model.read(head, two, packed).flatten()
        assert difference.abs().max() < 1e-5


def test_saved_and_loaded_to_the_bit(model: Model, tmp_path: Path) -> None:
    text = isinstance(model.config.embed, TextConfig)
    labels = tuple(f"LABEL_{i}" for i in range(2)) if {"classify", "tag"} & set(model.heads) else ()
    tokenizer = Tokenizer.from_vocabulary({piece: i for i, piece in enumerate(PIECES)}) if text else None
    card = Card(labels=labels, length=16 if text else None, image=None if text else Image(size=(32, 32)))
    store.save(store.Loaded(model, card, tokenizer, {}, {}), tmp_path / "saved")
    again = store.load(tmp_path / "saved")
    assert replace(again.model.config, pooler=False) == model.config
    assert again.card == card
    found = named_tensors(again.model)
    for name, tensor in named_tensors(model).items():
        assert torch.equal(found[name], tensor), name
