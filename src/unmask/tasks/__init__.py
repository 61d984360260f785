"""What a model is asked: one file a task. So far each holds how it asks and how it makes an answer of what comes back."""

from __future__ import annotations

from unmask import plugins
from unmask.tasks.base import Task

PACKAGE = "unmask.tasks"


def task(name: str) -> type[Task]:
    """The task of that name."""
    return plugins.find(PACKAGE, name, Task)  # type: ignore[type-abstract]


def tasks() -> dict[str, type[Task]]:
    return {name: task(name) for name in plugins.names(PACKAGE)}
