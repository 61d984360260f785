"""Classifying: what transformers' pipeline says, for one label, several labels, numbers and a lone logit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

import unmask
from conftest import sentences
from models import THREE, make_varied
from unmask.model.card import Card
from unmask.tasks.classify import Class, Classes, Classify, Number, Numbers

TEXTS = [*sentences(10), "", "서울 😀 Café", "the cat " * 50]
PAIRS = [(a, b) for a, b in zip(TEXTS, reversed(TEXTS), strict=True) if b]  # transformers takes an empty second text for none, but only outside of a batch
SHAPES: dict[str, dict[str, Any]] = {
    "one": THREE,
    "many": {**THREE, "problem_type": "multi_label_classification"},
    "number": {"num_labels": 1, "problem_type": "regression"},
    "numbers": {**THREE, "problem_type": "regression"},
    "lone": {"num_labels": 1},
}


def shown(answer: Any) -> dict[str, float]:
    """Every kind of answer as label -> score."""
    return {"LABEL_0": answer.value} if isinstance(answer, Number) else dict(answer.values if isinstance(answer, Numbers) else answer.scores)


@pytest.mark.parametrize("kind", SHAPES)
def test_the_answers_are_the_pipelines(kind: str, tmp_path: Path, vocabulary: list[str]) -> None:
    make_varied("BertForSequenceClassification", tmp_path, vocabulary, **SHAPES[kind])
    pipeline = transformers.pipeline("text-classification", model=str(tmp_path), top_k=None, truncation=True, max_length=64)
    model = unmask.load(tmp_path)
    expected = [pipeline({"text": a, "text_pair": b}) for a, b in PAIRS] + [pipeline([text])[0] for text in TEXTS]
    found = model.classify([*PAIRS, *TEXTS])
    assert {type(answer) for answer in found} == {{"many": Classes, "number": Number, "numbers": Numbers}.get(kind, Class)}
    for ours, theirs in zip(found, expected, strict=True):
        assert shown(ours) == pytest.approx({one["label"]: one["score"] for one in theirs}, abs=1e-5)
    assert len({max(shown(one), key=lambda label: shown(one)[label]) for one in found}) == (1 if kind in ("number", "lone") else 3)
    json.dumps([answer.json() for answer in found])


def test_the_best_comes_first(tmp_path: Path) -> None:
    make_varied("BertForSequenceClassification", tmp_path, **THREE)
    for found in unmask.load(tmp_path).classify(TEXTS):
        assert list(found.scores.values()) == sorted(found.scores.values(), reverse=True)
        assert (found.label, found.score) == next(iter(found.scores.items()))


def test_thresholds_come_from_the_card(tmp_path: Path) -> None:
    make_varied("BertForSequenceClassification", tmp_path, **SHAPES["many"])
    plain = unmask.load(tmp_path).classify(TEXTS)
    (tmp_path / "task.json").write_text(json.dumps({"thresholds": {"bad": 0.05, "good": 2.0}}))
    moved = unmask.load(tmp_path).classify(TEXTS)
    for before, after in zip(plain, moved, strict=True):
        assert before.scores == after.scores
        assert set(before.labels) == {label for label, score in before.scores.items() if score >= 0.5}
        limits = {"bad": 0.05, "fair": 0.5, "good": 2.0}
        assert set(after.labels) == {label for label, score in after.scores.items() if score >= limits[label]}
    assert any(before.labels != after.labels for before, after in zip(plain, moved, strict=True))


@pytest.mark.parametrize(("kind", "logits"), [("many", [-200.0, 0.0, 200.0]), ("one", [-200.0]), ("one", [-200.0, 0.0, 200.0])])
def test_far_logits_overflow_nothing(kind: str, logits: list[float]) -> None:
    """A warning is an error here, and numpy's exp(200) in float32 is one."""
    task = Classify(None, Card(labels=("a", "b", "c")[: len(logits)], kind=kind))
    found = task.decode("", [], [np.asarray(logits, np.float32)])
    assert all(0 <= score <= 1 for score in found.scores.values())  # type: ignore[union-attr]
    assert found.scores["a"] < 1e-30  # type: ignore[union-attr]
