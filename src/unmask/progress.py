"""What long work says of itself on standard error: a bar with speed and time left on a terminal, a plain line at intervals when piped."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")
EVERY = 5.0  # seconds between two plain lines


class Progress:
    """Work in one stage or several, each counted in its own unit; a total may be a guess, or None where nobody knows."""

    def __init__(self) -> None:
        self.bar: Any = None
        self.task: Any = None
        self.stage("", "")

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"), TimeRemainingColumn())
            self.bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.stop()

    def stage(self, what: str, unit: str, total: float | None = None) -> None:
        self.what, self.unit, self.total = what, unit, total
        self.done, self.start = 0.0, time.monotonic()
        self.told = self.start
        if self.bar is not None:
            if self.task is not None:
                self.bar.remove_task(self.task)
            self.task = self.bar.add_task(what, total=total, said="")

    def add(self, amount: float) -> None:
        self.done += amount
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done, said=self.said())
        elif time.monotonic() - self.told > EVERY:
            self.told = time.monotonic()
            print(f"{self.what}: {self.said()}{self._left()}", file=sys.stderr)

    def reach(self, what: str, unit: str, done: float, total: float | None = None) -> None:
        """So much of that stage is done, which begins when it is first named."""
        if self.what != what:
            self.stage(what, unit, total)
        self.add(done - self.done)

    def over(self, items: Iterable[T], size: Callable[[T], float]) -> Iterator[T]:
        for item in items:
            self.add(size(item))
            yield item

    def said(self) -> str:
        return f"{self.done:,.0f} {self.unit}, {self.done / max(time.monotonic() - self.start, 1e-9):,.0f} a second"

    def _left(self) -> str:
        if not self.total or not self.done or self.done > self.total:
            return ""
        return f", about {(time.monotonic() - self.start) * (self.total / self.done - 1):,.0f} s left"


def megabytes(text: str) -> float:
    """The size of a text on disk."""
    return (len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))) / 1e6
