"""unmask: a workshop for encoders. Importing it loads nothing heavy; the names below load when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from unmask.errors import UserError as UserError
    from unmask.infer.predictor import Predictor as Predictor
    from unmask.infer.predictor import load as load
    from unmask.recipes import recipe as recipe

_HOMES = {"Predictor": "unmask.infer.predictor", "UserError": "unmask.errors", "load": "unmask.infer.predictor", "recipe": "unmask.recipes"}

__all__ = ["Predictor", "UserError", "__version__", "load", "recipe", "train"]


def __getattr__(name: str) -> Any:
    import importlib

    if name == "train":  # a room that is called by its name
        return importlib.import_module("unmask.train")
    if name not in _HOMES:
        raise AttributeError(f"module 'unmask' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
