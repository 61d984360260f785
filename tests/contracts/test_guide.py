"""The family that the guide adds, held to what the project's own are held to."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import unmask
from models import SHAPES, TEXT, THREE, Case, make
from unmask import plugins
from unmask.model import families, store
from unmask.model.layout import Packed
from unmask.model.weights import named_tensors

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "add-a-family.md"
CASES = [
    Case("ernie", "ErnieModel", ()),
    Case("ernie", "ErnieModel", (), {"use_task_id": True}),
    Case("ernie", "ErnieForMaskedLM", ("words",)),
    Case("ernie", "ErnieForSequenceClassification", ("classify",), {**THREE, "use_task_id": True}),
    Case("ernie", "ErnieForTokenClassification", ("tag",), THREE),
]


@pytest.fixture(autouse=True)
def ernie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The guide's file, where families lie."""
    (tmp_path / "more").mkdir()
    found = re.search(r"```python ernie\.py\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    (tmp_path / "more" / "ernie.py").write_text(found[1])
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path / "more")])
    monkeypatch.setitem(SHAPES, "ernie", ("ErnieConfig", TEXT))
    plugins.names.cache_clear()
    yield
    plugins.names.cache_clear()
    families.family.cache_clear()
    sys.modules.pop("unmask.model.families.ernie", None)


@torch.inference_mode()
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_guide_s_family_is_theirs(case: Case, tmp_path: Path) -> None:
    theirs: Any = make(case, tmp_path / "theirs")
    store.save(store.load(tmp_path / "theirs"), tmp_path / "ours")
    tokens = torch.randint(5, 80, (1, 12), generator=torch.Generator().manual_seed(0))
    expected = theirs(tokens)
    expected = expected.last_hidden_state if not case.heads else expected.logits
    for folder in ("theirs", "ours"):
        ours = store.load(tmp_path / folder).model
        assert tuple(ours.heads) == case.heads
        rows = ours({"tokens": tokens[0], "positions": torch.arange(12)}, Packed.of([12]))
        found = ours.read(case.heads[0], rows, Packed.of([12])) if case.heads else rows
        assert (found - expected[0]).abs().max() <= 1e-5
    if not case.settings.get("use_task_id"):
        assert named_tensors(ours).keys() == {name for name, _ in theirs.named_parameters()}


def test_it_is_listed() -> None:
    assert "ernie" in families.names()
    assert unmask.model.families.shape("ernie.base").family == "ernie"
