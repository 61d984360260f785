"""What a person is told when something cannot be done: one sentence that names the thing and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what was given, not in the program. The command line prints it and exits with 2."""


def near(name: str, known: Iterable[str]) -> str:
    """`", did you mean x?"` when a known name is close, else `"; known: a, b"`."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3)
    return f", did you mean {' or '.join(close)}?" if close else f"; known: {', '.join(names)}"
