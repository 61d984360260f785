"""Text that every Python has with it: its documentation's topics, and what its own modules say of themselves. Two megabytes of plain English."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path

OTHERS = {"test", "tests", "site-packages", "idlelib", "lib2to3", "dist-packages"}
NODES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def documents() -> Iterator[str]:
    """A topic, or all that one module says; lines without a blank one between."""
    import pydoc_data.topics

    found = list(pydoc_data.topics.topics.values())
    home = Path(sysconfig.get_path("stdlib"))
    for path in sorted(home.rglob("*.py")):
        if not OTHERS & set(path.relative_to(home).parts):
            found.append("\n".join(_said(path)))
    for text in found:
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        if lines:
            yield "\n".join(lines)


def _said(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return
    for node in ast.walk(tree):
        if isinstance(node, NODES) and (text := ast.get_docstring(node)):
            yield text
