"""What a cell of labels says: one name, several, or a number; told from the first rows, held to in all."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from unmask.errors import UserError

NUMBERS = ("score", "similarity", "similarity_score", "relatedness_score", "relatedness")  # columns that hold numbers by their name
SEPARATORS = (";", "|", ",")
FEW = 20  # different whole numbers are stars or classes; more are amounts
SHOWN = 5  # labels that are named to the user
MISSING = ("", "nan", "NaN")  # as tables write a cell that nobody filled in


@dataclass(frozen=True)
class Reading:
    """How every cell of a column is read."""

    answers: Literal["one", "many", "number"]
    separator: str = ""  # between several in a cell; "" where they are a list


ONE = Reading("one")


def reading(values: Iterable[Any], column: str) -> Reading:
    """From the first cells of a column, whose name is compared as `tables.plain` has it."""
    found = [one for one in values if not missing(one)]
    if any(isinstance(one, (list, tuple)) for one in found):
        return Reading("many")
    if _amounts(found, column in NUMBERS):
        return Reading("number")
    cells = [_name(one) for one in found]
    for separator in SEPARATORS:
        if _joined(cells, separator):
            return Reading("many", separator)
    return ONE


def label(value: Any, how: Reading, at: str, column: str) -> str | tuple[str, ...] | float:
    """What a cell says. `at` begins the sentence about one that says nothing."""
    if missing(value):
        raise UserError(f"{at} has no label in {column!r}; fill it in, or leave that line out")
    if isinstance(value, dict):
        fields = f", such as {column}.{next(iter(value))}" if value else ""
        raise UserError(f"{at} has an object, not a label, in {column!r}; name a field of it{fields}, with --label")
    if how.answers == "number":
        return _amount(value, at, column)
    if how.answers == "many":
        return _several(value, how.separator, at, column)
    if isinstance(value, (list, tuple)):
        raise UserError(f"{at} has a list in {column!r} where the first lines have one label; give every line a list")
    return _name(value)


def said(values: Sequence[Any], how: Reading) -> str:
    """What the first cells hold, for people."""
    if how.answers == "number":
        numbers = [_float(one) for one in values]
        return f"a number from {min(numbers, default=0):g} to {max(numbers, default=0):g}"
    names = ordered({name for one in values for name in (_parts(one, how.separator) if how.answers == "many" else [_name(one)])})
    shown = f"of {len(names)} in the first rows: {', '.join(names[:SHOWN])}{', ...' if len(names) > SHOWN else ''}"
    between = f" with {how.separator!r} between" if how.separator else ""
    return f"several{between} {shown}" if how.answers == "many" else f"one {shown}"


def missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value)) or (isinstance(value, str) and value.strip() in MISSING)


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Sorted; numbers as numbers."""
    return tuple(sorted(names, key=lambda name: (0, _float(name), name) if math.isfinite(_float(name)) else (1, 0.0, name)))


def _name(value: Any) -> str:
    """A cell as the name of a label: 1.0, as tables with gaps write whole numbers, is 1."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


def _float(cell: Any) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan


def _amount(value: Any, at: str, column: str) -> float:
    found = _float(value)
    if not math.isfinite(found):
        raise UserError(f"{at} has {str(value)[:40]!r} in {column!r} where the first lines have numbers; mend it, or name another column with --label")
    return found


def _several(value: Any, separator: str, at: str, column: str) -> tuple[str, ...]:
    """No label at all is allowed, twice the same is not: rows of 0 and 1 would be read as names."""
    names = _parts(value, separator)
    if len(set(names)) < len(names) or "" in names:
        raise UserError(f"{at} has a label twice, or an empty one, in {column!r}; name each label that holds once")
    return names


def _parts(value: Any, separator: str) -> tuple[str, ...]:
    parts = value if isinstance(value, (list, tuple)) else _name(value).split(separator) if separator else [value]
    return tuple(_name(one) for one in parts)


def _amounts(values: Sequence[Any], named: bool) -> bool:
    """Whether they are amounts rather than classes or stars that happen to be written as numbers."""
    numbers = {_float(value) for value in values}
    if not values or not all(map(math.isfinite, numbers)):
        return False
    many = len(numbers) > FEW
    if named:
        return many or any("." in str(value) for value in values)
    return many and not all(map(float.is_integer, numbers))


def _joined(cells: Sequence[str], separator: str) -> bool:
    """Whether cells are several labels: at least half of the parts stand in other cells too. The comma of "Arts, Crafts" joins none."""
    cells_of = defaultdict(set)
    for cell in set(cells):
        for part in cell.split(separator):
            cells_of[part.strip()].add(cell)
    parts = [part for part, found in cells_of.items() if any(separator in cell for cell in found)]
    return bool(parts) and "" not in parts and sum(len(cells_of[part]) > 1 for part in parts) * 2 >= len(parts)
