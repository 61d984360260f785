"""unmask: a workshop for encoders. Importing it loads nothing heavy; the names below load when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from unmask.errors import UserError as UserError
    from unmask.infer.predictor import Predictor as Predictor
    from unmask.infer.predictor import load as load

_HOMES = {"Predictor": "unmask.infer.predictor", "UserError": "unmask.errors", "load": "unmask.infer.predictor"}

__all__ = ["Predictor", "UserError", "__version__", "load"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'unmask' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
