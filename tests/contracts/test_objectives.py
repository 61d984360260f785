"""What every objective keeps, whichever it is: a new file in objectives/ needs a line in `runs.LEARNED`, and is held to this."""

from __future__ import annotations

import itertools
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import runs
from unmask.config import Duration
from unmask.data.batch import Batch
from unmask.data.stream import Place
from unmask.errors import UserError
from unmask.model import families
from unmask.objectives import base as objectives
from unmask.train import checkpoint, log, loop
from unmask.train.distribute import Group
from unmask.train.feed import Begin, Step
from unmask.train.prepared import Prepared
from unmask.train.prove import EXACT, prove
from unmask.train.run import Run, from_json

every = pytest.mark.parametrize("name", runs.LEARNED)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.made(tmp_path_factory.mktemp("corpus"))


def first(run: Run) -> tuple[Prepared, Step]:
    """The run made ready, and its first step."""
    ready = Prepared(run, Path(), Group())
    feed = ready.feed(Duration.of("1"), Begin(), {})
    try:
        return ready, next(iter(feed))
    finally:
        feed.close()


def test_every_objective_is_here() -> None:
    assert set(runs.LEARNED) == set(objectives.names())
    for name in objectives.names():
        assert name in {objectives.name_of(one) for one in runs.LEARNED[name][0]}


@every
def test_its_terms_are_its_losses(name: str, shards: Path) -> None:
    """Each with how many answers were right; and a file of a dataclass of settings says what it does in one line."""
    ready, step = first(runs.learning(name, shards))
    found = ready.learner(step.parts[0][1])
    assert set(found) == {term + ending for term in ready.terms for ending in ("", ".right")}
    assert set(objectives.counts(step.parts[0][1])) == set(ready.terms) == set(ready.weights)
    assert all(loss.ndim == 0 for loss in found.values())
    said = (sys.modules[type(runs.LEARNED[name][0][-1]).__module__].__doc__ or "").split("\n")[0]
    assert 20 < len(said) < 160


@every
@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_what_it_announces_is_what_it_sums(name: str, layout: str, shards: Path) -> None:
    """All weights zero, a model knows nothing: each label then costs the log of how many answers there are, and their sum tells how many were asked."""
    ready, step = first(runs.learning(name, shards, precision="float64", layout=layout))
    with torch.no_grad():
        for p in ready.learner.parameters():
            p.zero_()
        found = [ready.learner(batch) for _, batch in step.parts]
    answers = {"words": 400, "ahead": 400, "back": 400, "next": 2, "replaced": 2}
    for term in ready.terms:
        assert sum(float(one[term]) for one in found) / math.log(answers[term]) == pytest.approx(step.counts[term], rel=1e-12)
        assert 0 <= sum(int(one[f"{term}.right"]) for one in found) <= step.counts[term]


@every
def test_every_parameter_learns(name: str, shards: Path) -> None:
    ready, step = first(runs.learning(name, shards, precision="float64"))
    loop.backward(ready, step)
    dead = [name for name, p in ready.learner.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert not dead


@every
def test_shapes_follow_from_the_number_of_tokens(name: str, shards: Path) -> None:
    """Of batches filled up to one number of tokens, as for a GPU: so nothing is compiled twice."""
    ready = Prepared(runs.learning(name, shards), Path(), Group())
    stream = ready.stream(0.0)
    stream.fixed = True
    batches = [batch for _, (_, batch) in zip(range(6), stream.batches(), strict=False)]
    assert len({len(batch.layout.lengths) for batch in batches}) > 1, "they are not all alike"
    per_text = {f"{term}.labels" for term in ("next",)}  # one a sequence, as many as these are
    shapes = {tuple((target, tensor.shape) for target, tensor in batch.targets.items() if target not in per_text) for batch in batches}
    assert len(shapes) == 1


@every
def test_filled_up_it_asks_the_same(name: str, shards: Path) -> None:
    """Sequences that nobody reads change no loss and no count."""
    ready = Prepared(runs.learning(name, shards, precision="float64"), Path(), Group())
    stream = ready.stream(0.0)
    place = Place()
    for after, plain in itertools.islice(stream.batches(), 20):
        if len(plain.inputs["tokens"]) < 512:
            break
        place = after
    stream.fixed = True
    filled = next(stream.batches(place))[1]
    assert len(filled.inputs["tokens"]) == 512 > len(plain.inputs["tokens"])
    assert objectives.counts(plain) == objectives.counts(filled)
    with torch.no_grad():
        found = [ready.learner(batch) for batch in (plain, filled)]
    assert all(float(found[0][term]) == pytest.approx(float(found[1][term]), rel=1e-12) for term in found[0])


@every
def test_it_is_proven(name: str, shards: Path, full: bool) -> None:
    """In any parts, padded or packed, recomputed, stopped and resumed: in float64 the same within 1e-9, the weights bit for bit."""
    found = list(prove(runs.learning(name, shards), ranks=(2,) if full else (), compiled=False))
    assert all(one.good for one in found), [str(one) for one in found]
    assert {"in 4 parts", "padded", "resumed in the middle"} <= {one.way for one in found}
    assert max(one.gradient for one in found) <= EXACT == 1e-9


@every
@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_stopped_and_resumed_it_is_the_same(name: str, layout: str, shards: Path, tmp_path: Path) -> None:
    """With dropout, and all of it: what is learned beside the model, what the optimizer remembers, every loss that was written down."""
    run = runs.learning(name, shards, dropout=0.1, layout=layout, stop="8", save="3")
    loop.train(run, tmp_path / "whole")
    assert loop.train(run, tmp_path / "halves", halt=5).steps == 5
    assert loop.train(run, tmp_path / "halves").finished
    kept = []
    for place in (tmp_path / "whole", tmp_path / "halves"):
        newest = checkpoint.newest(place)
        assert newest is not None
        state, tensors = checkpoint.restore(newest)
        rows = [{key: value for key, value in row.items() if key.endswith(("loss", "right", "norm"))} for row in log.rows(place) if "loss" in row]
        kept.append((dict(checkpoint.model(newest).named_parameters()), tensors, rows, state.metrics))
    for one, other in zip(kept[0][:2], kept[1][:2], strict=True):
        assert one.keys() == other.keys()  # type: ignore[attr-defined]
        assert all(torch.equal(one[key], other[key]) for key in one)  # type: ignore[index]
    assert kept[0][2:] == kept[1][2:]


@every
def test_it_learns(name: str, shards: Path, tmp_path: Path) -> None:
    """Every loss but that of next sentence, which random sentences cannot teach."""
    loop.train(runs.learning(name, shards, stop="40", evaluate_tokens=0), tmp_path / "run")
    rows = [row for row in log.rows(tmp_path / "run") if "loss" in row]
    for term in {term for one in runs.LEARNED[name][0] for term in one.terms} - {"next"}:
        assert sum(row[f"{term}.loss"] for row in rows[-5:]) / 5 < rows[0][f"{term}.loss"] - 0.2, term


@every
def test_a_run_with_it_goes_through_json(name: str, shards: Path) -> None:
    run = runs.learning(name, shards)
    assert from_json(json.loads(json.dumps(run.json())), Path("recipe.json")) == run
    again = runs.small(shards).set("objective", ",".join(objectives.name_of(one) for one in run.objective))
    assert [type(one) for one in again.objective] == [type(one) for one in run.objective]
    with pytest.raises(UserError, match="has a field 'nonsense' that is not known"):
        from_json({**run.json(), "objective": {name: {"nonsense": 1}}}, Path("recipe.json"))


@every
def test_it_needs_no_other_batch_to_be_what_it_is(name: str, shards: Path) -> None:
    """Of micro-batches of another size, the same sequences are asked the same."""

    def asked(tokens: int) -> dict[int, list[object]]:
        run = runs.learning(name, shards)
        run = replace(run, data=replace(run.data, tokens=tokens))
        found: dict[int, list[object]] = {}
        for _, block, number in Prepared(run, Path(), Group()).stream(0.0).walk():
            if len(found) > 40:
                return found
            found |= of_samples(block.make(number))
        return found

    one, other = asked(512), asked(256)
    shared = one.keys() & other.keys()
    assert len(shared) > 10
    assert all(one[sample] == other[sample] for sample in shared)


def of_samples(batch: Batch) -> dict[int, list[object]]:
    """For each sequence: what is shown, and everything that is asked of it."""
    assert batch.ids is not None
    found, ends = {}, torch.cumsum(batch.layout.lengths, 0).tolist()
    for sample, start, end in zip(batch.ids.tolist(), [0, *ends], ends, strict=False):
        said: list[object] = [batch.inputs["tokens"][start:end].tolist()]
        for name, rows in batch.targets.items():
            if name.endswith(".rows"):
                term = name.removesuffix(".rows")
                here = (rows >= start) & (rows < end) & (batch.targets[f"{term}.labels"] != -100)
                said += [(rows[here] - start).tolist()]
                said += [batch.targets[other][here].tolist() for other in batch.targets if other.startswith(f"{term}.") and other != name]
        found[sample] = said
    return found


def test_two_that_ask_for_the_same_are_told_apart(shards: Path) -> None:
    with pytest.raises(UserError, match="mlm,causal cannot be learned in one run: two of them ask for words; choose one"):
        runs.small(shards).set("objective", "mlm,causal")


@pytest.mark.parametrize(("name", "family", "head"), [("rtd", "bert", "replaced"), ("mlm", "bilm", "words"), ("nsp", "electra", "next")])
def test_a_family_without_its_head(name: str, family: str, head: str, shards: Path) -> None:
    run = runs.learning(name, shards)
    shape = {"bert": runs.shape, "bilm": runs.sides, "electra": runs.electra}[family]()
    with pytest.raises(UserError, match=f"a {family} has no head '{head}', which the objective asks for; choose a shape of one that has it: .*"):
        Prepared(replace(run, model=shape), Path(), Group())
    assert families.family(family)
