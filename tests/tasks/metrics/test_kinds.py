"""Names of metrics, as a recipe says them."""

from __future__ import annotations

import pytest

from unmask.errors import UserError
from unmask.tasks.metrics.kinds import KINDS, LOWER, named, offered

USUAL = {"one": "accuracy", "many": "f1", "number": "spearman", "embed": "spearman", "choice": "accuracy", "tagging": "f1", "spans": "f1"}


def test_what_chooses_a_checkpoint() -> None:
    assert {kind: named(kind) for kind in KINDS} == USUAL


def test_another_can_be_named() -> None:
    assert named("one", "matthews") == "matthews"
    assert named("number", "pearson") == "pearson"


def test_a_misspelt_metric_is_told() -> None:
    with pytest.raises(UserError, match=r"^there is no metric 'mathews' for the kind one, did you mean matthews\?$"):
        named("one", "mathews")
    with pytest.raises(UserError, match=r"^there is no metric 'bleu' for the kind choice; known: accuracy$"):
        named("choice", "bleu")
    with pytest.raises(UserError, match=r"^there is no kind of answer 'ones', did you mean one\?$"):
        named("ones")


def test_f1_of_one_label_is_of_two() -> None:
    assert "f1" in offered("one", 2)
    assert "f1" not in offered("one", 3)
    with pytest.raises(UserError, match=r"^there is no metric 'f1' for the kind one; known: accuracy, macro_f1, matthews, weighted_f1$"):
        named("one", "f1", 3)
    assert named("many", "f1", 3) == "f1"


def test_of_errors_less_is_better() -> None:
    names = {name for kind in KINDS.values() for name in kind.metrics}
    assert names >= LOWER - {"loss"}
    assert {name for name in names if name.endswith("error")} | {"loss"} == LOWER
