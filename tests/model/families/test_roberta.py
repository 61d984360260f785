"""RoBERTa and XLM-R: where positions begin, and what a folder is called when it is saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models import Case, make
from unmask.errors import UserError
from unmask.model import store


@pytest.mark.parametrize("architecture", ["RobertaForMaskedLM", "XLMRobertaForMaskedLM"])
def test_a_saved_folder_keeps_its_kind(architecture: str, tmp_path: Path) -> None:
    make(Case("roberta", architecture, ("words",)), tmp_path / "old")
    store.save(store.load(tmp_path / "old"), tmp_path / "new")
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert config["architectures"] == [architecture]
    assert config["model_type"] == ("xlm-roberta" if architecture.startswith("XLM") else "roberta")
    assert config["max_position_embeddings"] == 66


def test_positions_begin_after_the_padding_s_number(tmp_path: Path) -> None:
    make(Case("roberta", "RobertaModel", ()), tmp_path)
    config = store.load(tmp_path).model.config
    assert (config.embed.first, config.longest) == (2, 64)  # type: ignore[union-attr]


def test_no_position_to_use(tmp_path: Path) -> None:
    make(Case("roberta", "RobertaModel", ()), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"max_position_embeddings": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="max_position_embeddings is 2, of which 2 are never used"):
        store.load(tmp_path)
