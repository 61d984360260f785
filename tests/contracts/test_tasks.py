"""What holds for every task there is: each file of unmask/tasks is found, is one final class, and gives answers for people and machines."""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unmask
import unmask.tasks
from models import Case, make
from unmask import plugins
from unmask.model import families
from unmask.model.card import Card
from unmask.tasks import task, tasks
from unmask.tasks.base import Answer, Task

NAMES = sorted(tasks())


def test_every_file_is_found() -> None:
    files = {path.stem for path in Path(unmask.tasks.__file__).parent.glob("*.py")} - {"__init__", *plugins.SHARED}
    assert set(NAMES) == files


@pytest.mark.parametrize("name", NAMES)
def test_it_is_one_final_class(name: str) -> None:
    """Nothing inherits from a task: what two share stands in base."""
    one = task(name)
    assert not inspect.isabstract(one)
    assert one.__bases__ == (Task,)
    assert not one.__subclasses__()
    assert one.over in ("texts", "tokens")
    assert one.pairs in (True, False, None)
    assert one.pairs or not one.several
    heads = {head for family in families.families() for head in family.heads}
    assert one.head in heads | {""}


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_does(name: str) -> None:
    """`unmask show tasks` prints the first line of the file."""
    said = (sys.modules[task(name).__module__].__doc__ or "").split("\n")[0]
    assert 20 < len(said) < 160
    assert said.endswith(".")


@pytest.mark.parametrize("name", NAMES)
def test_a_misspelt_option_is_told(name: str) -> None:
    with pytest.raises(unmask.UserError, match=rf"^{name} has no option"):
        task(name)(None, Card(), nonsense=1)
    task(name)(None, Card(), **task(name).defaults)


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_frozen_and_become_json(name: str, tmp_path: Path) -> None:
    """The folder is any one that has the head, BERT's first."""
    one = task(name)
    known = [("bert", *pair) for pair in families.family("bert").architectures.items()]
    known += [(kind, *pair) for kind in families.names() for pair in families.family(kind).architectures.items()]
    kind, architecture = next((kind, theirs) for kind, theirs, heads in known if one.head in heads or (not one.head and not heads))
    make(Case(kind, architecture, ()), tmp_path)
    given: Any = ("a", ["the [MASK] ran to b", "c"] if one.several else "the [MASK] ran to b") if one.pairs else "the [MASK] ran to b"
    found = unmask.load(tmp_path).ask(name, given)
    for answer in found if isinstance(found, list) else [found]:
        if isinstance(answer, np.ndarray):
            assert answer.dtype == np.float32
            continue
        assert isinstance(answer, Answer)
        assert type(answer).__module__ == one.__module__
        assert json.loads(json.dumps(answer.json()))
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(answer, dataclasses.fields(answer)[0].name, None)


SHOUT = '''
"""A task that nobody had thought of: how loud a text is."""

from dataclasses import dataclass

from unmask.tasks.base import Answer, Task


@dataclass(frozen=True)
class Loudness(Answer):
    letters: int

    def __str__(self):
        return "!" * self.letters


class Shout(Task):
    head = ""
    over = "texts"
    pairs = False

    def outputs(self, model, rows, batch):
        return batch.layout.at(rows)

    def decode(self, given, windows, outputs):
        return Loudness(sum(letter.isupper() for letter in given))
'''


@pytest.fixture
def dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One more file where the tasks lie."""
    (tmp_path / "shout.py").write_text(SHOUT)
    monkeypatch.setattr(unmask.tasks, "__path__", [*unmask.tasks.__path__, str(tmp_path)])
    plugins.names.cache_clear()
    yield
    plugins.names.cache_clear()
    sys.modules.pop("unmask.tasks.shout", None)


@pytest.mark.usefixtures("dropped")
def test_a_new_file_is_a_new_task(tmp_path: Path) -> None:
    assert sorted(tasks()) == sorted([*NAMES, "shout"])
    make(Case("bert", "BertModel", ()), tmp_path / "model")
    found = unmask.load(tmp_path / "model").ask("shout", ["quiet", "LOUD"])
    assert [one.json() for one in found] == [{"letters": 0}, {"letters": 4}]
