"""JSON and words of a command read strictly, into frozen dataclasses where there is one: a field that is not known, or of another type, is one sentence."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from unmask.errors import UserError, near

T = TypeVar("T")
UNITS = {"": "steps", "steps": "steps", "tok": "tokens", "ep": "epochs", "s": "seconds", "min": "seconds", "h": "seconds", "%": "share"}
SECONDS = {"min": 60.0, "h": 3600.0, "%": 0.01}


@dataclass(frozen=True)
class Clock:
    """How far a run is, in each way that it can be counted."""

    steps: float = 0
    tokens: float = 0
    epochs: float = 0.0
    seconds: float = 0.0
    share: float = 0.0  # of the whole run


@dataclass(frozen=True)
class Duration:
    """`20000` (steps), `1e9tok`, `90ep`, `10min`, `2%` of the run."""

    amount: float
    unit: str

    @classmethod
    def of(cls, said: str) -> Duration:
        found = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e\d+)?)\s*([a-z%]*)\s*", said)
        if found is None or found[2] not in UNITS:
            raise UserError(f"{said!r} is no duration; write it as 20000 (steps), 1e9tok, 3ep, 10min or 2%")
        return cls(float(found[1]) * SECONDS.get(found[2], 1.0), UNITS[found[2]])

    def passed(self, clock: Clock) -> float:
        """How often it has gone by."""
        return getattr(clock, self.unit) / self.amount if self.amount else math.inf

    def due(self, before: Clock, now: Clock) -> bool:
        """Whether something that is done so often is to be done: the only place that decides it."""
        return self.amount > 0 and math.floor(self.passed(now) + 1e-9) > math.floor(self.passed(before) + 1e-9)


def fitted(thing: T, path: Path | str, found: Mapping[str, Any]) -> T:
    """The dataclass with these fields set to what a file says of them, each of its type."""
    hints = _hints(thing)
    chosen: dict[str, Any] = {}
    for name, value in found.items():
        if name not in hints:
            raise UserError(f"{path} has a field {name!r} that is not known{near(name, hints)}")
        try:
            chosen[name] = _fit(value, hints[name], path, getattr(thing, name))
        except (ValueError, OverflowError):  # a whole number too large for a float
            raise UserError(f"{path} says {name} is {json.dumps(value)[:60]}; it should be {_wanted(hints[name])}") from None
    return _replaced(thing, chosen, path)


def _hints(thing: Any) -> dict[str, Any]:
    """The types of its fields; what belongs to its class is none of them."""
    hints = get_type_hints(type(thing))
    return {one.name: hints[one.name] for one in fields(thing)}


def _replaced(thing: T, chosen: Mapping[str, Any], path: Path | str) -> T:
    try:
        return replace(thing, **chosen)  # type: ignore[type-var]
    except ValueError as error:  # what a dataclass says of values that do not go together
        raise UserError(f"{path}: {error}") from None


def _fit(value: Any, hint: Any, path: Path | str, now: Any = None) -> Any:
    """A value out of JSON as a field's type has it; ValueError where it is of another. `now` is what the field holds, whose own type counts."""
    origin, inner = get_origin(hint), get_args(hint)
    if is_dataclass(now) and isinstance(value, dict):
        return fitted(now, path, value)
    if type(None) in inner:
        return None if value is None else _fit(value, inner[0], path)
    if origin is Literal:
        if value in inner:
            return value
        raise ValueError
    if origin is tuple and isinstance(value, list | tuple) and (inner[-1] is ... or len(value) == len(inner)):
        return tuple(_fit(one, kind, path) for one, kind in zip(value, inner if inner[-1] is not ... else [inner[0]] * len(value), strict=True))
    if origin is Mapping and isinstance(value, dict):
        return {name: _fit(one, inner[1], path) for name, one in value.items()}
    if is_dataclass(hint) and isinstance(value, dict):
        return fitted(hint(), path, value)  # type: ignore[operator]
    if hint is Any:
        return value
    if hint is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if type(value) is hint and hint is not float:  # what is left of those is not finite
        return value
    raise ValueError


def plain(thing: Any) -> Any:
    """A dataclass as JSON has it."""
    if is_dataclass(thing) and not isinstance(thing, type):
        return {one.name: plain(getattr(thing, one.name)) for one in fields(thing)}
    if isinstance(thing, Mapping):
        return {name: plain(value) for name, value in thing.items()}
    return [plain(one) for one in thing] if isinstance(thing, list | tuple) else thing


def overridden(thing: T, name: str, word: str, path: str = "") -> T:
    """The dataclass with the field of that dotted name set to what was typed."""
    first, _, rest = name.partition(".")
    known = _hints(thing)
    full = f"{path}{first}"
    if first not in known:
        raise UserError(f"there is no field {full}{near(first, known)}")
    now, hint = getattr(thing, first), known[first]
    if rest:
        if not is_dataclass(now):
            raise UserError(f"{full} has no fields, so there is no {full}.{rest}; it is {_wanted(hint)}")
        return _replaced(thing, {first: overridden(now, rest, word, f"{full}.")}, full)
    try:
        value = _fit(_typed(word, hint), hint, full, now)
    except (ValueError, OverflowError):
        raise UserError(f"--{full} {word} is not of its kind; it should be {_wanted(hint)}") from None
    return _replaced(thing, {first: value}, full)


def _typed(word: str, hint: Any) -> Any:
    """What somebody types for a field: a bare word where a text is wanted, else JSON; a list may be written with commas alone."""
    inner = get_args(hint)
    if hint is str or (get_origin(hint) is Literal and all(isinstance(one, str) for one in inner)):
        return word
    if type(None) in inner:
        return None if word in ("none", "null") else _typed(word, inner[0])
    if get_origin(hint) is tuple and not word.startswith("["):
        return [_typed(one, inner[0]) for one in word.split(",")] if word else []
    if hint is bool and word in ("yes", "no"):
        return word == "yes"
    try:
        value = json.loads(word)
    except (ValueError, RecursionError):
        raise ValueError from None
    return int(value) if hint is int and isinstance(value, float) and value.is_integer() else value


def _wanted(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if type(None) in inner:
        return f"{_wanted(inner[0])}, or null"
    if origin is tuple:
        return f"a list {'' if inner[-1] is ... else f'of {len(inner)} '}({_wanted(inner[0])} each)"
    if origin is Mapping:
        return f"an object ({_wanted(inner[1])} each)"
    if origin is Literal:
        return " or ".join(map(str, inner))
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
