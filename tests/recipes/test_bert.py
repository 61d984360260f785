"""BERT's recipes and those that mask otherwise: what is masked, and some steps of each in its tiny shape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import runs
import unmask
from unmask import recipes
from unmask.objectives.mlm import Masking
from unmask.train import loop
from unmask.train.distribute import Group
from unmask.train.prepared import Prepared
from unmask.train.run import Run

UNITS = {"bert.tiny": "piece", "bert.base": "piece", "bert.whole_words": "word", "spanbert.base": "span", "spanbert.tiny": "span"}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.made(tmp_path_factory.mktemp("corpus"))


def tiny(name: str, shards: Path) -> Run:
    """In the shape of bert.tiny, with steps small enough for a test."""
    run = replace(recipes.recipe(name), model=recipes.recipe("bert.tiny").model, stop="5", evaluate_tokens=500)
    return replace(run, data=replace(run.data, path=(str(shards),), tokens=1024, step=((0.0, 1),), longest=((0.0, 64),)))


@pytest.mark.parametrize("name", UNITS)
def test_what_is_masked(name: str, shards: Path) -> None:
    """15% of the pieces; by words and spans no word in part; by spans several words in a row."""
    ready = Prepared(tiny(name, shards), Path(), Group())
    asks = ready.stream(0.0).objective.masking  # type: ignore[attr-defined]
    assert isinstance(asks, Masking)
    assert asks.unit == UNITS[name]
    asked = pieces = parted = alone = 0
    for _, (_, batch) in zip(range(12), ready.stream(0.0).batches(), strict=False):
        labels = batch.targets["words.labels"].numpy()
        rows = batch.targets["words.rows"].numpy()[labels != -100]
        original = batch.inputs["tokens"].numpy().copy()
        original[rows] = labels[labels != -100]
        chosen = np.zeros(len(original), bool)
        chosen[rows] = True
        inner = ready.source.pieces.inner[original[1:]]
        parted += int((chosen[1:] != chosen[:-1])[inner].sum())
        alone += int((chosen[1:-1] & ~chosen[:-2] & ~chosen[2:]).sum())
        asked, pieces = asked + len(rows), pieces + int((~ready.source.pieces.special[original]).sum())
    assert abs(asked / pieces - 0.15) < 0.02
    assert (parted == 0) == (UNITS[name] != "piece")
    assert (alone / asked < 0.2) == (UNITS[name] == "span")


@pytest.mark.parametrize("name", UNITS)
def test_some_steps(name: str, shards: Path, tmp_path: Path) -> None:
    result = loop.train(tiny(name, shards), tmp_path / "run")
    assert (result.steps, result.finished) == (5, True)
    assert len(unmask.load(tmp_path / "run").fill("the [MASK]").masks) == 1


def test_a_tiny_twin_is_the_same_but_for_its_size() -> None:
    """Of spans; that of whole words is `bert.tiny --mlm.unit word`."""
    base, small = recipes.recipe("spanbert.base"), recipes.recipe("spanbert.tiny")
    assert small == replace(base, model=small.model, data=small.data, optimizer=replace(base.optimizer, lr=small.optimizer.lr), stop=small.stop)
    assert small.model == recipes.recipe("bert.tiny").model
    assert small.data.short == base.data.short == 0.0, "single texts that fill the length"
    words = recipes.recipe("bert.whole_words")
    assert recipes.recipe("bert.tiny").set("mlm.unit", "word").objective == words.objective
    assert words == replace(recipes.recipe("bert.base"), objective=words.objective)
    for one in (base, words):
        assert one.data.tokens * one.data.step[0][1] == 131_072
