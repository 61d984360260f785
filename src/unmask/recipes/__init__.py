"""Recipes: functions that return a run. A file is a paper or an experiment; `bert.base` is the function base in bert.py."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from unmask import plugins
from unmask.errors import UserError, near
from unmask.train.run import Run


def recipes() -> dict[str, Callable[[], Run]]:
    """Every recipe by its name."""
    found: dict[str, Callable[[], Run]] = {}
    for file in plugins.names(__name__):
        module = importlib.import_module(f"{__name__}.{file}")
        for name, one in vars(module).items():
            if inspect.isfunction(one) and one.__module__ == module.__name__ and not name.startswith("_"):
                found[f"{file}.{name}"] = one
    return found


def recipe(name: str) -> Run:
    known = recipes()
    if name not in known:
        raise UserError(f"there is no recipe {name!r}{near(name, known)}")
    return known[name]()


def shown(name: str) -> list[dict[str, Any]] | None:
    """For `unmask show`: every recipe with the first line of what it says, or the fields of one; None where none is meant."""
    known = recipes() if name == "recipes" or (name.count(".") == 1 and name.split(".")[0] in plugins.names(__name__)) else {}
    if name == "recipes":
        return [{"recipe": key, "is": (inspect.getdoc(one) or "").split("\n")[0]} for key, one in known.items()]
    return [{"recipe": name, "is": inspect.getdoc(known[name]) or "", **known[name]().json()}] if name in known else None
