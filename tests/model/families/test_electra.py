"""ELECTRA: what of its config is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models import Case, make
from unmask.errors import UserError
from unmask.model import store


@pytest.mark.parametrize("said", [{"summary_type": "last"}, {"summary_activation": "tanh"}, {"summary_use_proj": False}], ids=str)
def test_other_ways_to_sum_up_are_refused(said: dict[str, Any], tmp_path: Path) -> None:
    make(Case("electra", "ElectraForMultipleChoice", ("choice",)), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | said
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="sums a text up in a way that is not known here"):
        store.load(tmp_path)


def test_a_discriminator_of_another_kind_is_refused(tmp_path: Path) -> None:
    make(Case("electra", "ElectraForPreTraining", ("replaced",)), tmp_path)
    with pytest.raises(UserError, match="ask for 1 or more"):
        store.load(tmp_path, heads={"replaced": 0})
