"""A run in a file is the same run; what is typed changes one thing; what cannot be is one sentence before anything begins."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unmask.errors import UserError, near
from unmask.model import families
from unmask.objectives import base as objectives
from unmask.objectives.mlm import MLM
from unmask.objectives.nsp import NSP
from unmask.recipes import recipe, recipes
from unmask.train import run as settings
from unmask.train.optim import Optimizer
from unmask.train.run import Run, Shards, from_json
from unmask.train.schedule import Schedule

FILE = Path("recipe.json")
SHAPES = [f"{family.__class__.__module__.rpartition('.')[2]}.{size}" for family in families.families() for size in family.shapes]


KNOWN = ", ".join(objectives.names())


def again(run: Run) -> Run:
    return from_json(json.loads(json.dumps(run.json())), FILE)


def run() -> Run:
    return recipe("bert.tiny")


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_in_a_file_is_the_same(name: str) -> None:
    assert again(recipe(name)) == recipe(name)


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_in_a_file_is_the_same(name: str) -> None:
    """Whatever the file's run is read into first: another shape, of other kinds."""
    found = replace(
        run(), model=families.shape(name).with_heads(words=7, next=2), objective=(NSP("order"), MLM(until=0.3, unit="span")), data=Shards(("a", "b"))
    )
    assert again(found) == found
    assert type(again(found).model.encoder) is type(found.model.encoder)


@pytest.mark.parametrize("name", objectives.names())
def test_every_objective_in_a_file_is_the_same(name: str) -> None:
    found = run().set("objective", name)
    assert again(found) == found
    assert type(found.objective[0]) is objectives.find(name)


def test_the_order_of_objectives_stays() -> None:
    """The first one that cuts documents is the one that counts."""
    assert [type(one) for one in again(replace(run(), objective=(NSP(), MLM()))).objective] == [NSP, MLM]


def changed(**changes: Any) -> Run:
    return replace(run(), **changes)


@pytest.mark.parametrize(
    ("name", "word", "expected"),
    [
        ("seed", "7", changed(seed=7)),
        ("stop", "1e9tok", changed(stop="1e9tok")),
        ("stop", "20000", changed(stop="20000")),
        ("precision", "float64", changed(precision="float64")),
        ("recompute", "yes", changed(recompute=True)),
        ("optimizer.lr", "2e-4", changed(optimizer=replace(run().optimizer, lr=2e-4))),
        ("optimizer.name", "muon", changed(optimizer=replace(run().optimizer, name="muon"))),
        ("schedule.warmup", "500", changed(schedule=replace(run().schedule, warmup="500"))),
        ("data.path", "a,b", changed(data=replace(run().data, path=("a", "b")))),
        ("data.step", "[[0, 4], [0.5, 8]]", changed(data=replace(run().data, step=((0.0, 4), (0.5, 8))))),
        ("mlm.rate", "0.3", changed(objective=(MLM(rate=0.3), NSP()))),
        ("mlm.unit", "span", changed(objective=(MLM(unit="span"), NSP()))),
        ("nsp.kind", "order", changed(objective=(MLM(), NSP("order")))),
        ("objective", "mlm", changed(objective=(MLM(),))),
        ("objective", "nsp,mlm", changed(objective=(NSP(), MLM()))),
        ("model", "bert.mini", changed(model=families.shape("bert.mini"))),
        ("model", "modernbert.base", changed(model=families.shape("modernbert.base"))),
        ("model.embed.positions", "64", changed(model=replace(run().model, embed=replace(run().model.embed, positions=64)))),  # type: ignore[arg-type]
        ("model.encoder.depth", "6", changed(model=replace(run().model, encoder=replace(run().model.encoder, depth=6)))),  # type: ignore[type-var]
    ],
)
def test_what_is_typed_changes_one_thing(name: str, word: str, expected: Run) -> None:
    assert run().set(name, word) == expected
    assert run().set(name, word) != run()


def test_what_is_said_last_counts() -> None:
    """Also of what had to wait: 256 tokens are too few for sequences of 512, until these are shorter."""
    said = [("data.tokens", "256"), ("seed", "1"), ("data.longest", "[[0, 32]]"), ("data.tokens", "128"), ("seed", "2")]
    found = settings.changed(run(), said)
    assert (found.data.tokens, found.data.longest, found.seed) == (128, ((0.0, 32),), 2)


def test_an_objective_keeps_its_settings_when_another_comes_or_goes() -> None:
    found = run().set("mlm.rate", "0.3").set("mlm.until", "0.1").set("objective", "mlm")
    assert found.objective == (MLM(rate=0.3, until=0.1),)
    assert found.set("objective", "nsp,mlm").set("mlm.until", "none").objective == (NSP(), MLM(rate=0.3))


@pytest.mark.parametrize(
    ("name", "word", "says"),
    [
        ("mlm.rat", "0.3", "there is no field mlm.rat, did you mean rate?"),
        ("mlm.terms", "words", "there is no field mlm.terms, did you mean other?"),
        ("mlm.rate", "much", "--mlm.rate much is not of its kind; it should be a number"),
        ("modle", "0.3", "there is no field modle, did you mean model?"),
        ("objective", "mlm,nps", "none of the objectives is called 'nps', did you mean nsp?"),
        ("objective", "", f"none of the objectives is called ''; known: {KNOWN}"),
        ("objective", "mlm,mlm", "a run learns by each objective once; its objective is mlm,mlm"),
        ("objective.rate", "1", "objective has no fields, so there is no objective.rate; it is a list (an object each)"),
        ("model", "bert.tony", "the family bert has no shape 'tony', did you mean tiny?"),
        ("model", "modrenbert.base", f"none of the families is called 'modrenbert'{near('modrenbert', families.names())}"),
        ("model.encoder.heads", "3", "model.encoder.heads: width 128 is not a multiple of 3 heads"),
        ("optimizer.betas", "0.9", "--optimizer.betas 0.9 is not of its kind; it should be a list of 2 (a number each)"),
        ("optimizer.name", "sgd", "--optimizer.name sgd is not of its kind; it should be adamw or lamb or muon"),
        ("stop", "soon", "'soon' is no duration; write it as 20000 (steps), 1e9tok, 3ep, 10min or 2%"),
        ("data.path", "", "data.path names no folder; give one or more that unmask prepare wrote"),
        ("ema", "NaN", "--ema NaN is not of its kind; it should be a number"),
    ],
)
def test_what_is_typed_wrongly(name: str, word: str, says: str) -> None:
    with pytest.raises(UserError) as told:
        run().set(name, word)
    assert str(told.value) == says


def test_what_this_run_does_not_learn_by() -> None:
    with pytest.raises(UserError, match=r"^this run does not learn by nsp, so there is no nsp.kind; it learns by mlm$"):
        run().set("objective", "mlm").set("nsp.kind", "order")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stop": "5%"}, "a run cannot stop after 5% of itself; say 20000 (steps), 1e9tok, 3ep or 10min"),
        ({"evaluate": "often"}, "'often' is no duration; write it as 20000 (steps), 1e9tok, 3ep, 10min or 2%"),
        ({"save": "-1"}, "'-1' is no duration; write it as 20000 (steps), 1e9tok, 3ep, 10min or 2%"),
        ({"objective": ()}, f"a run needs something to learn; its objective is one or more of {KNOWN}"),
        ({"objective": (MLM(), MLM(rate=0.3))}, "a run learns by each objective once; its objective is mlm,mlm"),
        ({"together": 0}, "together 0, keep 2 and ema 0.0 cannot be; give 1 or more, 1 or more, and 0 to below 1"),
        ({"keep": 0}, "together 1, keep 0 and ema 0.0 cannot be; give 1 or more, 1 or more, and 0 to below 1"),
        ({"ema": 1.0}, "together 1, keep 2 and ema 1.0 cannot be; give 1 or more, 1 or more, and 0 to below 1"),
        ({"ema": -0.5}, "together 1, keep 2 and ema -0.5 cannot be; give 1 or more, 1 or more, and 0 to below 1"),
        (
            {"schedule": Schedule(warmup="30s")},
            "a warm-up of 30s needs a run that stops by time, and this one stops after 100000; give it in steps or %",
        ),
    ],
)
def test_runs_that_cannot_be(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as told:
        replace(run(), **changes)
    assert str(told.value) == says


def test_a_run_by_time_may_warm_up_by_time() -> None:
    """Nothing else tells its steps the time; by steps, the rate would stay where it began."""
    assert replace(run(), stop="10min", schedule=Schedule(warmup="30s")).stop == "10min"
    assert replace(run(), stop="10min", schedule=Schedule(warmup="30")).stop == "10min"


STAGES = "it is a list of (share of the run, value) from share 0 on, such as [[0, 128], [0.9, 512]]"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"step": ()}, f"data.step is (); {STAGES}"),
        ({"step": ((0.0, 0),)}, f"data.step is ((0.0, 0),); {STAGES}"),
        ({"step": ((0.1, 8),)}, f"data.step is ((0.1, 8),); {STAGES}"),
        ({"longest": ((0.0, 128), (0.9, 512), (0.5, 256))}, f"data.longest is ((0.0, 128), (0.9, 512), (0.5, 256)); {STAGES}"),
        ({"tokens": 511}, "sequences of 512 tokens do not fit into micro-batches of 511; raise data.tokens"),
        (
            {"tokens": 256, "longest": ((0.0, 512), (0.5, 128))},  # the longest need not be the last
            "sequences of 512 tokens do not fit into micro-batches of 256; raise data.tokens",
        ),
        ({"path": ()}, "data.path names no folder; give one or more that unmask prepare wrote"),
    ],
)
def test_shards_that_cannot_be_read_so(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as told:
        Shards(**changes)
    assert str(told.value) == says


def test_shards_whose_longest_just_fit() -> None:
    assert Shards(tokens=512).tokens == 512


@pytest.mark.parametrize(
    "changes", [{"lr": 0.0}, {"lr": -1.0}, {"rest": 0.0}, {"layer_decay": 0.0}, {"layer_decay": 1.1}, {"clip": -1.0}, {"lr": float("nan")}]
)
def test_rates_that_cannot_be(changes: dict[str, float]) -> None:
    with pytest.raises(UserError, match=r"^an optimizer with lr \S+, rest \S+, layer_decay \S+ and clip \S+ cannot be; rates are above 0$"):
        Optimizer(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{"betas": (0.9, 1.0)}, {"betas": (-0.1, 0.9)}, {"momentum": 1.0}, {"epsilon": -1e-6}, {"weight_decay": -0.01}])
def test_optimizers_that_cannot_be(changes: dict[str, Any]) -> None:
    says = r"^an optimizer with betas .+ and weight_decay \S+ cannot be; betas and momentum are 0 to below 1, the others 0 or more$"
    with pytest.raises(UserError, match=says):
        Optimizer(**changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "bert.tiny"}, r"^recipe.json is no recipe \(TypeError: .+\); give the folder of a run$"),
        ({"model": {}}, r"^recipe.json is no recipe \(KeyError: 'family'\); give the folder of a run$"),
        ({"model": {"family": ["bert"]}}, r"^recipe.json is no recipe \(TypeError: .+\); give the folder of a run$"),
        ({"model": {"family": "modrenbert"}}, r"^none of the families is called 'modrenbert', did you mean modernbert"),
        ({"objective": "mlm"}, r"^recipe.json is no recipe \(ValueError: .+\); give the folder of a run$"),
        ({"objective": ["mlm"]}, r"^recipe.json is no recipe \(ValueError: .+\); give the folder of a run$"),
        ({"objective": 3}, r"^recipe.json is no recipe \(TypeError: .+\); give the folder of a run$"),
        ({"objective": {"mlm": 0.15}}, r"^recipe.json is no recipe \(AttributeError: .+\); give the folder of a run$"),
        ({"objective": {"mlm": {"rate": "x"}}}, r'^recipe.json says rate is "x"; it should be a number$'),
        ({"objective": {"mlm": {"terms": []}}}, r"^recipe.json has a field 'terms' that is not known, did you mean other\?$"),
        ({"objective": {}}, r"^a run needs something to learn"),
        ({"seed": 0.5}, r"^recipe.json says seed is 0.5; it should be a whole number$"),
        ({"evalaute": "5%"}, r"^recipe.json has a field 'evalaute' that is not known, did you mean evaluate"),
        ({"stop": 20000}, r"^recipe.json says stop is 20000; it should be a text$"),
        ({"optimizer": {"lr": True}}, r"^recipe.json says lr is true; it should be a number$"),
        ({"data": {"step": [[0, 1.5]]}}, r"^recipe.json says step is \[\[0, 1.5\]\]; it should be a list"),
        ({"ema": 10**400}, r"^recipe.json says ema is 10+; it should be a number$"),
    ],
)
def test_files_that_hold_no_run(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        from_json({**run().json(), **changes}, FILE)


@pytest.mark.parametrize("name", ["model", "objective"])
def test_a_file_without_what_every_run_has(name: str) -> None:
    with pytest.raises(UserError, match=rf"^recipe.json is no recipe \(KeyError: '{name}'\); give the folder of a run$"):
        from_json({key: value for key, value in run().json().items() if key != name}, FILE)
