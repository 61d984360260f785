"""Learning from labelled examples: the batches are what the data says, and a task learns in the one loop, resumes exactly, and says what it measured."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import runs
import unmask
from unmask.data.examples import Example, Mark
from unmask.errors import UserError
from unmask.model.layout import Packed
from unmask.recipes import recipe
from unmask.tasks import task
from unmask.tasks.spans import Answering, _held
from unmask.train import loop
from unmask.train.distribute import Group
from unmask.train.prepared import Prepared
from unmask.train.run import Run, from_json
from unmask.train.source import Labelled

GOOD, BAD = ["good fine well nice", "fine day", "nice good work", "well done fine"], ["bad poor ill wrong", "wrong day", "poor bad work", "ill done wrong"]


@pytest.fixture(scope="module")
def start(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that has begun to learn."""
    place = tmp_path_factory.mktemp("start") / "run"
    loop.train(runs.small(shards, stop="2"), place)
    return place


def written(place: Path, rows: list[dict[str, Any]]) -> str:
    place.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(place)


@pytest.fixture
def reviews(tmp_path: Path) -> str:
    rows = [{"text": f"{text} {i}", "label": label} for i in range(12) for label, texts in (("good", GOOD), ("bad", BAD)) for text in texts]
    return written(tmp_path / "reviews.jsonl", rows)


def run_of(name: str, start: Path, data: str, **changes: Any) -> Run:
    run = recipe(name)
    table = replace(run.data, path=(data,), size=8)  # type: ignore[type-var]
    return replace(run, start=str(start), data=table, optimizer=replace(run.optimizer, lr=2e-3), compile="no", **{"stop": "6ep", **changes})


def test_it_learns_and_says_so(start: Path, reviews: str, tmp_path: Path) -> None:
    result = loop.train(run_of("classify", start, reviews), tmp_path / "run")
    assert result.metrics["valid.accuracy"] == 1.0
    model = unmask.load(tmp_path / "run")
    assert model.card.labels == ("bad", "good")
    assert [one.label for one in model.classify(["nice fine", "wrong ill"])] == ["good", "bad"]


def test_stopped_and_resumed_it_is_the_same(start: Path, reviews: str, tmp_path: Path) -> None:
    run = run_of("classify", start, reviews, stop="3ep")
    whole = loop.train(run, tmp_path / "whole")
    first = loop.train(run, tmp_path / "parts", halt=5)
    assert not first.finished
    again = loop.train(from_json(json.loads((tmp_path / "parts" / "recipe.json").read_text()), tmp_path), tmp_path / "parts")
    assert again.metrics == whole.metrics
    one, other = (unmask.load(tmp_path / name).model.state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_an_epoch_is_every_example_once(start: Path, reviews: str) -> None:
    source = Prepared(run_of("classify", start, reviews), Path(), Group()).source
    assert isinstance(source, Labelled)
    stream = source.stream(512, fixed=False, static=False)
    walk, seen = stream.walk(), []
    for after, block, number in walk:
        seen.append(block.make(number))
        if after.epoch:
            break
    numbers = np.concatenate([batch.ids.numpy() for batch in seen if batch.ids is not None])
    assert sorted(numbers) == list(range(len(source.examples))) != numbers.tolist()
    assert len(source.examples) + len(source.held) == 96
    assert not {example.name for example in source.examples} & {example.name for example in source.held}
    filled = source.stream(512, fixed=False, static=True)
    _, block, number = next(filled.walk())
    assert len(block.make(number).inputs["tokens"]) % 64 == 0


@pytest.mark.parametrize("name", ["classify", "tagging", "spans", "choice"])
def test_what_fills_a_batch_up_changes_no_loss(name: str, start: Path, reviews: str, tmp_path: Path) -> None:
    ready = Prepared(run_of(name, start, data_of(name, tmp_path), precision="float64"), Path(), Group())
    found = []
    for static in (False, True):
        _, block, number = next(ready.source.stream(512, fixed=True, static=static).walk())
        with torch.no_grad():
            found.append(ready.learner.eval()(block.make(number)))
    assert found[0].keys() == found[1].keys()
    assert all(float(found[0][term]) == pytest.approx(float(found[1][term]), rel=1e-12) for term in found[0])


def data_of(name: str, place: Path) -> str:
    text = "the good day and the bad work of the nice man"
    rows: dict[str, list[dict[str, Any]]] = {
        "classify": [{"text": one, "label": label} for label, texts in (("good", GOOD), ("bad", BAD)) for one in texts] * 3,
        "tagging": [{"text": text, "entities": [{"start": 4, "end": 12, "label": "DAY"}, {"start": 25, "end": 29, "label": "WORK"}]}] * 12,
        "spans": [{"question": "what day", "context": f"{text} {i}", "answers": {"text": ["good day"], "answer_start": [4]}} for i in range(12)],
        "choice": [{"question": f"{text} {i}", "choices": [["good", "bad", "ill"][(i + j) % 3] for j in range(3)], "label": -i % 3} for i in range(12)],
    }
    return written(place / f"{name}.jsonl", rows[name])


@pytest.mark.parametrize(("name", "metric"), [("tagging", "f1"), ("spans", "f1"), ("choice", "accuracy")])
def test_every_task_learns_in_the_one_loop(name: str, metric: str, start: Path, tmp_path: Path) -> None:
    data = data_of(name, tmp_path)
    run = run_of(name, start, data, stop="25ep", evaluate="5ep")
    run = replace(run, data=replace(run.data, validation=(data,)), optimizer=replace(run.optimizer, lr=5e-3))  # type: ignore[type-var]
    assert loop.train(run, tmp_path / "run").metrics[f"valid.{metric}"] > 0.9


def test_labels_of_words_are_their_first_pieces(start: Path) -> None:
    model = unmask.load(start)
    tuning = recipe("tagging").objective[0]
    tuning = replace(tuning, labels=("O", "B-X", "I-X"))  # type: ignore[type-var]
    text = "the good day and work"
    (one,) = tuning.samples(task("tagging")(model.tokenizer, model.card), [Example(text, (Mark("X", 4, 12),), "1")])  # type: ignore[attr-defined]
    assert one.labels["tag"].tolist() == [0, 1, 2, 0, 0]
    with pytest.raises(UserError, match="has an entity 'Y', which the others don't have"):
        list(tuning.samples(task("tagging")(model.tokenizer, model.card), [Example(text, (Mark("Y", 4, 12),), "1")]))  # type: ignore[attr-defined]


def test_an_answer_is_where_the_text_has_it(start: Path) -> None:
    model = unmask.load(start)
    context = "the good day and the bad work"
    (window,) = task("spans")(model.tokenizer, model.card).windows([("what", context)])
    first, last = _held(window.encoding, 4, "good day")
    offsets = window.encoding.offsets
    assert context[offsets[first][0] : offsets[last][1]] == "good day"
    assert _held(window.encoding, len(context) + 5, "beyond") == (0, 0)


def test_the_loss_of_spans_is_a_softmax_over_each_sequence(start: Path, tmp_path: Path) -> None:
    ready = Prepared(run_of("spans", start, data_of("spans", tmp_path), precision="float64"), Path(), Group())
    _, block, number = next(ready.source.stream(512, fixed=True, static=False).walk())
    batch = block.make(number)
    assert isinstance(batch.layout, Packed)
    with torch.no_grad():
        states = ready.learner.eval().model(batch.inputs, batch.layout)
        found = ready.objective[0].losses(ready.learner, states, batch)["spans"]
        logits = ready.learner.model.read("spans", states, batch.layout)
        expected = 0.0
        for i, place in enumerate(batch.targets["spans.labels"]):
            one = logits[int(batch.layout.bounds[i]) : int(batch.layout.bounds[i + 1])].log_softmax(0)
            expected -= float(one[place[0], 0] + one[place[1], 1])
    assert float(found) == pytest.approx(expected, rel=1e-12)
    assert isinstance(ready.objective[0], Answering)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"start": ""}, "a task is learned on top of a model; say which with --model FOLDER"),
        ({"objective": (runs.MLM(),)}, "mlm learns from shards, and the run's data are examples; give a recipe of a task"),
    ],
)
def test_what_cannot_be(change: dict[str, Any], said: str, start: Path, reviews: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        loop.train(replace(run_of("classify", start, reviews), **change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_longer_than_the_model_takes(start: Path, reviews: str, tmp_path: Path) -> None:
    run = run_of("classify", start, reviews)
    with pytest.raises(UserError, match=r"sequences of 100 tokens are longer than the 64 that .* takes; lower data.length"):
        loop.train(replace(run, data=replace(run.data, length=100)), tmp_path / "run")  # type: ignore[type-var]


def test_as_typed(start: Path, reviews: str, tmp_path: Path) -> None:
    """Train, then evaluate, alone and against another; the columns by name."""

    def unmasked(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "unmask", *words], capture_output=True, text=True, check=False, cwd=tmp_path)

    common = ["--model", str(start), "--data", reviews, "--compile", "no", "--data.size", "8", "--optimizer.lr", "2e-3"]
    made = unmasked("train", "classify", *common, "--out", "one", "--stop", "3ep", "--text", "text", "--label", "label")
    assert made.returncode == 0, made.stderr
    assert "the text from column text, the label from column label" in made.stdout
    assert unmasked("train", "classify", *common, "--out", "other", "--steps", "1").returncode == 0
    alone = unmasked("evaluate", "one", reviews, "--worst", "2")
    found = json.loads(alone.stdout)
    assert found["examples"] == 96
    assert found["metrics"]["accuracy"]["low"] <= found["metrics"]["accuracy"]["value"] <= found["metrics"]["accuracy"]["high"]
    assert [one["loss"] for one in found["worst"]] == sorted((one["loss"] for one in found["worst"]), reverse=True)
    beside = json.loads(unmasked("evaluate", "one", reviews, "--against", "other").stdout)
    assert beside["difference"]["accuracy"]["value"] > 0
    wrong = unmasked("evaluate", "one", reviews, "--text", "nothing")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "nothing" in wrong.stderr
    assert unmasked("evaluate", "one", reviews, "--task", "fill").returncode == 2
