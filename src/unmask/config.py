"""JSON read strictly, into frozen dataclasses where there is one: a field that is not known, or of another type, is one sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from unmask.errors import UserError, near

T = TypeVar("T")


def fitted(thing: T, path: Path, found: Mapping[str, Any]) -> T:
    """The dataclass with these fields set to what a file says of them, each of its type."""
    hints = get_type_hints(type(thing))
    fields: dict[str, Any] = {}
    for name, value in found.items():
        if name not in hints:
            raise UserError(f"{path} has a field {name!r} that is not known{near(name, hints)}")
        try:
            fields[name] = _fit(value, hints[name], path)
        except ValueError:
            raise UserError(f"{path} says {name} is {json.dumps(value)[:60]}; it should be {_wanted(hints[name])}") from None
    return replace(thing, **fields)  # type: ignore[type-var]


def _fit(value: Any, hint: Any, path: Path) -> Any:
    """A value out of JSON as a field's type has it; ValueError where it is of another."""
    origin, inner = get_origin(hint), get_args(hint)
    if type(None) in inner:
        return None if value is None else _fit(value, inner[0], path)
    if origin is tuple and isinstance(value, list | tuple) and (inner[-1] is ... or len(value) == len(inner)):
        return tuple(_fit(one, inner[0], path) for one in value)
    if origin is Mapping and isinstance(value, dict):
        return {name: _fit(one, inner[1], path) for name, one in value.items()}
    if is_dataclass(hint) and isinstance(value, dict):
        return fitted(hint(), path, value)  # type: ignore[operator]
    if hint is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if type(value) is hint:
        return value
    raise ValueError


def _wanted(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if type(None) in inner:
        return f"{_wanted(inner[0])}, or null"
    if origin is tuple:
        return f"a list {'' if inner[-1] is ... else f'of {len(inner)} '}({_wanted(inner[0])} each)"
    if origin is Mapping:
        return f"an object ({_wanted(inner[1])} each)"
    return {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}.get(hint, "an object")


def read_json(path: Path) -> dict[str, Any]:
    found = _json(path)
    if not isinstance(found, dict):
        raise UserError(f"{path} should hold a JSON object, it holds a {type(found).__name__}; copy it again from where it came")
    return found


def read_list(path: Path) -> list[dict[str, Any]]:
    """A JSON list of objects, as modules.json is."""
    found = _json(path)
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise UserError(f"{path} should hold a JSON list of objects; copy it again from where it came")
    return found


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); copy it again from where it came") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}); copy it again from where it came") from None
