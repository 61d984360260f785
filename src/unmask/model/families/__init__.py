"""Families of models: one file each, found by its name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from unmask import plugins
from unmask.errors import UserError, near
from unmask.model.families.base import Family
from unmask.model.model import Model, ModelConfig

PACKAGE = "unmask.model.families"


@cache
def family(name: str) -> Family:
    """The family of that name."""
    return plugins.find(PACKAGE, name, Family)()  # type: ignore[type-abstract]


def names() -> tuple[str, ...]:
    return plugins.names(PACKAGE)


def families() -> list[Family]:
    return [family(name) for name in names()]


def shape(name: str) -> ModelConfig:
    """A published shape: `bert.base`, `vit.huge`."""
    kind, _, size = name.partition(".")
    shapes = family(kind).shapes
    if size not in shapes:
        raise UserError(f"the family {kind} has no shape {size!r}{near(size, shapes)}")
    return shapes[size]


def recognise(config: Mapping[str, Any]) -> Family:
    """The family a config.json belongs to: by its model_type, else by what old configs say."""
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in names():
        return family(kind)
    for candidate in families():
        if kind in candidate.model_types or (kind is None and candidate.recognises(config)):
            return candidate
    if kind is None:
        raise UserError(f"config.json says no model_type, and no architectures that are known here; add the model_type, one of {', '.join(names())}")
    raise UserError(f"config.json says model_type {kind!r}{near(str(kind), names())}")


def build(config: ModelConfig) -> Model:
    """The modules of a shape, their numbers not yet set."""
    kind = family(config.family)
    heads = {name: kind.head(name, config, labels) for name, labels in config.heads}
    needed = config.pooler or any(head.over == "pooled" for head in heads.values())
    return Model(config, kind.trunk(config), kind.pooler(config) if needed else None, heads)


def new(config: ModelConfig, seed: int = 0) -> Model:
    """A model with fresh weights, the same for the same seed."""
    with torch.device("meta"):
        model = build(config)
    model.to_empty(device="cpu")
    model.tie()
    family(config.family).start(model, torch.Generator().manual_seed(seed))
    return model
