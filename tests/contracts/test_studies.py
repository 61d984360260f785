"""What holds for every study there is: each file of unmask/study but the demo's says its options, runs, and says in a line what it does."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from unmask import cli, study

NAMES = study.names()


def test_every_file_is_found() -> None:
    assert set(NAMES) == {path.stem for path in Path(str(study.__file__)).parent.glob("*.py")} - {"__init__", "demo", "pydocs"}


@pytest.mark.parametrize("name", NAMES)
def test_it_has_a_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module: Any = importlib.import_module(f"unmask.study.{name}")
    assert callable(module.run)
    with pytest.raises(SystemExit) as ended:
        cli.main(["study", name, "--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert said.startswith(f"usage: unmask study {name}")
    first = (module.__doc__ or "").split("\n")[0]
    assert 20 < len(first) < 160
    assert first.endswith(".")
    assert " ".join(first.split()[:4]) in said
