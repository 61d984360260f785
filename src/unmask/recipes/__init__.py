"""Recipes: functions that return a run. A file is a paper or an experiment; `bert.base` is the function base in bert.py."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from unmask import plugins
from unmask.errors import UserError, near
from unmask.model import families
from unmask.tasks import tuning
from unmask.train.optim import Optimizer
from unmask.train.run import Run, Table
from unmask.train.schedule import Schedule


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
    """By its name; the name of a task is a recipe too."""
    if name in tuning.names():
        return tuned(name)
    known = recipes()
    if name not in known:
        raise UserError(f"there is no recipe {name!r}{near(name, (*known, *tuning.names()))}")
    return known[name]()


def tuned(name: str) -> Run:
    """A model taught that task, as BERT's were (Devlin et al. 2018, appendix A.3): three epochs of batches of 32, the best of them kept."""
    return Run(
        families.shape("bert.base"),  # the model's own shape takes its place
        (tuning.find(name)(),),
        Table(),
        Optimizer(lr=5e-5),
        Schedule("linear", warmup="10%"),
        stop="3ep",
        evaluate="1ep",
        evaluate_tokens=2**40,
        save="1ep",
        keep=1,
    )


def shown(name: str) -> list[dict[str, Any]] | None:
    """For `unmask show`: every recipe with the first line of what it says, or the fields of one; None where none is meant."""
    known = recipes() if name == "recipes" or (name.count(".") == 1 and name.split(".")[0] in plugins.names(__name__)) else {}
    if name == "recipes":
        return [{"recipe": key, "is": (inspect.getdoc(one) or "").split("\n")[0]} for key, one in known.items()]
    return [{"recipe": name, "is": inspect.getdoc(known[name]) or "", **known[name]().json()}] if name in known else None
