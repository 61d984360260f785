"""Studies: one file each, asked for as `unmask study NAME`. Its name is the file's; its `command(parser)` says its options, its `run(asked)` does it."""

from __future__ import annotations

from unmask import plugins


def names() -> tuple[str, ...]:
    """Every study there is; nothing of them is imported. The demo has a command of its own, and pydocs is text for it."""
    return plugins.names(__name__, skip=("demo", "pydocs"))
