"""Both ways: what is asked, counted by hand, and the losses by plain LSTMs, a sequence at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import runs
import unmask
from unmask.data.batch import Batch
from unmask.data.stream import IGNORED
from unmask.errors import UserError
from unmask.model import store
from unmask.objectives.mlm import MLM
from unmask.train import loop
from unmask.train.distribute import Group
from unmask.train.feed import padded
from unmask.train.prepared import Prepared

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")  # what torch says of one sequence alone


@pytest.fixture(scope="module")
def ready(shards: Path) -> Prepared:
    return Prepared(runs.learning("bilm", shards, precision="float64"), Path(), Group())


@pytest.fixture(scope="module")
def batch(ready: Prepared) -> Batch:
    return next(ready.stream(0.0).batches())[1]


def asked(batch: Batch, term: str) -> list[tuple[int, int]]:
    real = batch.targets[f"{term}.labels"] != IGNORED
    return list(zip(batch.targets[f"{term}.rows"][real].tolist(), batch.targets[f"{term}.labels"][real].tolist(), strict=True))


def test_every_two_neighbours_are_asked_for_each_other(batch: Batch) -> None:
    tokens, ahead, back = batch.inputs["tokens"].tolist(), [], []
    for start, end in zip(batch.layout.bounds[:-1].tolist(), batch.layout.bounds[1:].tolist(), strict=True):  # type: ignore[attr-defined]
        ahead += [(place, tokens[place + 1]) for place in range(start, end - 1)]
        back += [(place, tokens[place - 1]) for place in range(start + 1, end)]
    assert asked(batch, "ahead") == ahead
    assert asked(batch, "back") == back
    assert {len(one) for one in batch.targets.values()} == {len(tokens)}, "as many rows as tokens, whatever the sequences"


@torch.no_grad()
def sequence(ready: Prepared, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The states of one sequence, one side after the other, by torch's own LSTM read a token at a time."""
    model = ready.learner.model
    sides = []
    for name, order in (("ahead", range(len(tokens))), ("back", reversed(range(len(tokens))))):
        x = model.embed.words.weight[tokens]
        for number, layer in enumerate(model.encoder.layers):
            lstm, states, memory = getattr(layer, name), torch.zeros_like(x), None
            for place in (steps := list(order)):
                out, memory = lstm(x[place][None], memory)
                states[place] = out[0]
            x = states if number == 0 else x + states
            order = steps
        sides.append(x)
    return sides[0], sides[1]


def test_the_losses_are_those_of_plain_lstms(ready: Prepared, batch: Batch) -> None:
    softmax = ready.learner.beside["bilm"]
    table, bias = ready.learner.model.embed.words.weight, softmax.bias
    sums = {"ahead": 0.0, "back": 0.0}
    right = {"ahead": 0, "back": 0}
    with torch.no_grad():
        bias.normal_(generator=torch.Generator().manual_seed(0))  # type: ignore[operator, union-attr]
        for tokens in batch.layout.split(batch.inputs["tokens"]):
            ahead, back = sequence(ready, tokens)
            for term, states, labels in (("ahead", ahead[:-1], tokens[1:]), ("back", back[1:], tokens[:-1])):
                logits = states @ table.T + bias
                sums[term] += float(F.cross_entropy(logits, labels, reduction="sum"))
                right[term] += int((logits.argmax(-1) == labels).sum())
        for one in (batch, padded(batch, 48)):
            found = ready.learner(one)
            for term in sums:
                assert abs(float(found[term]) - sums[term]) / len(asked(batch, term)) < 1e-9
                assert int(found[f"{term}.right"]) == right[term]


@torch.no_grad()
def test_no_side_sees_what_it_is_asked(ready: Prepared, batch: Batch) -> None:
    """One token changed in the middle of the first sequence: what reads to the right is as it was before it, what reads to the left after it."""
    end = int(batch.layout.lengths[0])
    place = end // 2
    changed = batch.inputs["tokens"].clone()
    changed[place] = (changed[place] + 1) % 400
    one, other = (ready.learner.model({**batch.inputs, "tokens": tokens}, batch.layout) for tokens in (batch.inputs["tokens"], changed))
    ahead, back = ((a != b).any(-1).nonzero().flatten().tolist() for a, b in zip(one.chunk(2, -1), other.chunk(2, -1), strict=True))
    assert ahead == list(range(place, end))
    assert back == list(range(place + 1))


def test_one_softmax_serves_both_and_is_the_embedding(ready: Prepared) -> None:
    beside = [name for name in ready.precision.masters if name.startswith("beside.")]
    assert beside == ["beside.bilm.bias"]
    assert not ready.loaded.model.heads


def test_its_folder_answers(shards: Path, tmp_path: Path) -> None:
    loop.train(runs.learning("bilm", shards, stop="3"), tmp_path / "run")
    predictor = unmask.load(tmp_path / "run")
    assert predictor.embed(["the list", "a name is bound to it"]).shape == (2, 32)
    assert predictor.hidden("the list", layer=[0, 1, 2]).vectors.shape == (3, 4, 32)
    with pytest.raises(UserError, match="this model has no head 'words', which fill needs"):
        predictor.fill("the [MASK]")
    more = loop.train(replace(runs.learning("bilm", shards, stop="2"), start=str(tmp_path / "run")), tmp_path / "more")
    assert store.load(more.folder).model.config.family == "bilm"


def test_a_model_that_sees_its_answers_is_refused(shards: Path) -> None:
    run = replace(runs.learning("bilm", shards), model=runs.shape())
    with pytest.raises(UserError, match="bilm asks what a bert can see, and it would learn to look it up; choose a shape of the family bilm"):
        Prepared(run, Path(), Group())


def test_it_asks_for_all_tokens_and_nothing_else_may(shards: Path) -> None:
    run = runs.learning("bilm", shards)
    with pytest.raises(UserError, match="a bilm has no head 'words'"):
        Prepared(replace(run, objective=(*run.objective, MLM())), Path(), Group())
