"""What every family keeps, whichever it is: a new file in model/families is held to this with nothing written here."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

import unmask
from unmask.errors import UserError
from unmask.model import families, store
from unmask.model.card import Card, Image
from unmask.model.embed import ImageConfig, TextConfig
from unmask.model.encoder import EncoderConfig
from unmask.model.layout import Packed, Padded
from unmask.model.model import Model, ModelConfig
from unmask.model.weights import named_tensors, tensors
from unmask.tasks import tasks
from unmask.tasks.base import Task
from unmask.tokenizer import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"]


SMALL = {"width": 64, "heads": 2, "hidden": 96, "depth": 3, "dropout": 0.0, "attention_dropout": 0.0}
SMALL |= {"stem": 8, "widths": (8, 16, 24, 32), "depths": (1, 2, 1, 1)}


def tiny(name: str) -> ModelConfig:
    """The family's first shape, made small in what its shapes have."""
    config = next(iter(families.family(name).shapes.values()))
    fields = {field.name for field in dataclasses.fields(config.encoder)}  # type: ignore[arg-type]
    encoder = replace(config.encoder, **{field: value for field, value in SMALL.items() if field in fields})  # type: ignore[type-var]
    if isinstance(config.embed, TextConfig):
        return replace(config, embed=replace(config.embed, vocabulary=12, positions=32, dropout=0.0), encoder=encoder)
    return replace(config, embed=replace(config.embed, size=(32, 32)), encoder=encoder)


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
        return {"pixels": torch.randn(2, size.channels, *size.size, generator=draw)}, [size.tokens(size.size)] * 2
    return {"tokens": torch.randint(0, 12, (2, 9), generator=draw), "positions": torch.arange(9).expand(2, 9)}, [9, 9]


@pytest.mark.parametrize("name", families.names())
def test_a_config_goes_both_ways(name: str) -> None:
    kind = families.family(name)
    for config in kind.shapes.values():
        again = kind.read(kind.write(config) | {"architectures": [kind.architecture(config.with_heads(classify=2))]})
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
    names = [name for ours, _ in tensors(model) for name in kind.theirs(ours)]
    assert len(names) == len(set(names))
    assert len(named_tensors(model)) == len(names)


def test_every_parameter_learns(model: Model) -> None:
    """Wherever it stands: some begin where others have nothing to learn from them yet."""
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=draw), alpha=0.02)
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


def saved(model: Model, folder: Path) -> Card:
    """A folder of it, which says how it answers."""
    text = isinstance(model.config.embed, TextConfig)
    labels = tuple(f"LABEL_{i}" for i in range(2)) if {"classify", "tag"} & set(model.heads) else ()
    tokenizer = Tokenizer.from_vocabulary({piece: i for i, piece in enumerate(PIECES)}) if text else None
    card = Card(labels=labels, length=32 if text else None, image=None if text else Image(size=(32, 32)))
    store.save(store.Loaded(model, card, tokenizer, {}, {}), folder)
    return card


def test_saved_and_loaded_to_the_bit(model: Model, tmp_path: Path) -> None:
    card = saved(model, tmp_path / "saved")
    again = store.load(tmp_path / "saved")
    details = model.config.details if model.heads else again.model.config.details  # what only a head reads is not said without one
    assert replace(again.model.config, pooler=False, embed=model.config.embed) == replace(model.config, details=details)
    if not isinstance(model.config.embed, ImageConfig) or not model.config.embed.partial:  # a CNN takes any size, and its config says none
        assert again.model.config.embed == model.config.embed
    assert again.card == card
    found = named_tensors(again.model)
    for name, tensor in named_tensors(model).items():
        assert torch.equal(found[name], tensor), name


def asked(model: Model, one: type[Task]) -> list[Any]:
    """Inputs of several kinds for a task."""
    if isinstance(model.config.embed, ImageConfig):
        return [Pillow.new("RGB", (30 + 5 * i, 40), (90 * i, 60, 200)) for i in range(3)]
    texts = ["a b c [MASK]", "d [MASK]", "g f e d c b a a b [MASK] c d"]
    if one.several:
        return [("a c", texts[: 1 + i]) for i in range(3)]
    return [("a c", text) for text in texts] if one.pairs else texts


def numbers(answer: Any) -> Any:
    """Every number of an answer, to compare two of them."""
    if isinstance(answer, np.ndarray):
        return answer.tolist()
    found: list[float] = []

    def walk(one: Any) -> None:
        for part in one.values() if isinstance(one, dict) else one if isinstance(one, list | tuple) else ():
            walk(part)
        if isinstance(one, float):
            found.append(one)

    walk([one.json() for one in answer] if isinstance(answer, list) else answer.json())
    return sorted(found)


def test_it_answers(model: Model, tmp_path: Path) -> None:
    """Every task that its heads serve, many inputs at once as one at a time."""
    saved(model, tmp_path / "saved")
    predictor = unmask.load(tmp_path / "saved")
    served = [name for name, one in tasks().items() if one.head in (*predictor.heads, "")]
    assert {tasks()[name].head for name in served} == {*predictor.heads, ""}
    for name in served:
        given = asked(model, tasks()[name])
        found = predictor.ask(name, given)
        assert len(found) == len(given)
        for one, answer in zip(given, found, strict=True):
            assert numbers(predictor.ask(name, one)) == pytest.approx(numbers(answer), abs=1e-5)


def test_it_shows_its_inside(model: Model, tmp_path: Path) -> None:
    saved(model, tmp_path / "saved")
    predictor = unmask.load(tmp_path / "saved")
    given = asked(model, tasks()["embed"])[0]
    depth = model.config.encoder.depth
    for layer in range(depth + 1):
        hidden = predictor.hidden(given, layer=layer)
        assert len(hidden.pieces) == len(hidden.vectors)
    assert hidden.vectors.shape[1] == model.config.encoder.width
    if not isinstance(model.config.encoder, EncoderConfig):
        with pytest.raises(UserError, match="has no attention to show"):
            predictor.attention(given)
        if isinstance(model.config.embed, ImageConfig):
            with pytest.raises(UserError, match="differ in shape"):
                predictor.hidden(given, layer=[0, -1])
        return
    maps = predictor.attention(given)
    assert maps.weights.shape == (depth, model.config.encoder.heads, len(maps.pieces), len(maps.pieces))
    assert np.abs(maps.weights.sum(-1) - 1).max() < 1e-5
