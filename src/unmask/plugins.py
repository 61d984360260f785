"""One file is one plug-in: its name is the file's, and it is the one concrete class in there."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache
from types import ModuleType
from typing import TypeVar

from unmask.errors import UserError, near

T = TypeVar("T")


SHARED = ("base", "tuning", "metrics")  # files of a package that its plug-ins share


@cache
def names(package: str, skip: tuple[str, ...] = SHARED) -> tuple[str, ...]:
    """The plug-ins of a package, by the names of its files; nothing of them is imported."""
    path = importlib.import_module(package).__path__
    return tuple(sorted(m.name for m in pkgutil.iter_modules(path) if m.name not in skip))


def has(package: str, name: str, kind: type[object]) -> bool:
    """Whether the file of that name holds such a class."""
    return bool(_classes(importlib.import_module(f"{package}.{name}"), kind))


def find(package: str, name: str, kind: type[T]) -> type[T]:
    """The class of that kind in the file of that name."""
    known = names(package)
    if name not in known:
        raise UserError(f"none of the {package.rsplit('.', 1)[1]} is called {name!r}{near(name, known)}")
    module = importlib.import_module(f"{package}.{name}")
    classes = _classes(module, kind)
    if len(classes) != 1:
        raise TypeError(f"{module.__name__} must hold one concrete {kind.__name__}, it holds {len(classes)}")
    return classes[0]


def _classes(module: ModuleType, kind: type[T]) -> list[type[T]]:
    return [c for c in vars(module).values() if inspect.isclass(c) and issubclass(c, kind) and not inspect.isabstract(c) and c.__module__ == module.__name__]
