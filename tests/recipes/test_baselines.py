"""The baselines at their published sizes, and some steps of each as a person would ask for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import runs
import unmask
from unmask import recipes
from unmask.model import families, store
from unmask.model.model import parameters
from unmask.train import log, loop

NAMES = {"baselines.gpt": ("bert", 28_500_992), "baselines.elmo": ("bilm", 8_658_176), "baselines.electra": ("electra", 13_483_008)}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.made(tmp_path_factory.mktemp("corpus"))


def test_they_are_found() -> None:
    assert {name for name in recipes.recipes() if name.startswith("baselines.")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_their_sizes(name: str) -> None:
    """Of the trunk that is left, without the pooler that none of them learns."""
    run = recipes.recipe(name)
    with torch.device("meta"):
        assert parameters(families.build(replace(run.model, pooler=False))) == NAMES[name][1]
    assert run.data.tokens * run.data.step[0][1] == 131_072


@pytest.mark.parametrize("name", NAMES)
def test_some_steps(name: str, shards: Path, tmp_path: Path) -> None:
    """`unmask train baselines.gpt --data SHARDS --steps 5`, with steps small enough for a test."""
    run = recipes.recipe(name)
    changes = {"stop": "5", "data.path": str(shards), "data.tokens": "256", "data.step": "[[0,1]]", "data.longest": "[[0,32]]", "evaluate_tokens": "500"}
    for field, word in changes.items():
        run = run.set(field, word)
    result = loop.train(run, tmp_path / "run")
    assert (result.steps, result.finished) == (5, True)
    assert len([row for row in log.rows(tmp_path / "run") if "loss" in row]) == 5
    assert store.load(tmp_path / "run").model.config.family == NAMES[name][0]
    assert unmask.load(tmp_path / "run").embed("the list").shape == (run.model.encoder.width,)
