"""Shared out by FSDP2 a run learns what it learns alone, and its folder does not tell; each rank has its rows and no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import runs
from unmask.train import checkpoint, log, loop
from unmask.train.distribute import Group
from unmask.train.prepared import Prepared
from unmask.train.run import Run
from unmask.train.shares import Shares

RANKS = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
import torch
torch.set_num_threads(1)
import test_shares
from unmask.errors import UserError
from unmask.train import loop
from unmask.train.distribute import group

with group("cpu") as g:
    found = {}
    for name, run, halt in test_shares.made(Path(sys.argv[1]), sys.argv[4] == "full"):
        real, rows = loop.backward, {}

        def watched(ready, step):
            losses = real(ready, step)
            masters, states = ready.precision.masters, ready.optimizers.state().values()
            rows.update(mine=sum(p.numel() for p in masters.values()), all=sum(shape.numel() for shape in ready.shares.shapes.values()))
            rows.update(parts=len(step.parts), states=sum(state.numel() for state in states if state.ndim), sharded=ready.sharded)
            if name == "poisoned" and step.number == 3 and g.rank == 1:
                masters["model.encoder.layers.1.feed.up.weight"].grad[0] = float("nan")
            return losses

        loop.backward = watched
        try:
            loop.train(run, Path(sys.argv[2]) / name, g, halt=halt)
        except UserError as error:
            rows["said"] = str(error)
        loop.backward = real
        found[name] = rows
    (Path(sys.argv[2]) / f"{g.rank}.json").write_text(json.dumps(found))
"""


def cases(shards: Path, full: bool) -> dict[str, Run]:
    """Steps of five micro-batches, two at once: one rank goes through the model twice, the other once. All else that a run may have is in one of them."""
    exact = runs.small(shards, precision="float64", stop="10", save="5", evaluate_tokens=1_200)  # three batches for two ranks
    exact = replace(exact, data=replace(exact.data, step=((0.0, 5),)), together=2)
    slower = replace(exact.optimizer, layer_decay=0.8, clip=0.5)
    beside = runs.learning("rtd", shards, precision="float64", stop="6", recompute=True)
    one = replace(exact.model, family="albert", embed=replace(exact.model.embed, width=24), encoder=replace(exact.model.encoder, distinct=1))  # type: ignore[call-arg,type-var]
    found = {
        "adamw": replace(exact, optimizer=slower, ema=0.5),
        "lamb": replace(exact, stop="6", optimizer=replace(slower, name="lamb")),
        "muon": replace(exact, stop="6", optimizer=replace(slower, name="muon")),
        "rtd": replace(beside, data=replace(beside.data, step=((0.0, 3),))),  # of its head for one answer the second rank has no row
    }
    more = {name: runs.learning(name, shards, precision="float64", stop="6") for name in ("mlm", "causal", "bilm")}
    return found | ({**more, "albert": replace(exact, model=one), "compiled": replace(exact, compile="yes", stop="3")} if full else {})


def halves(shards: Path) -> dict[str, Run]:
    """Runs that go on otherwise than they began."""
    return {name: replace(cases(shards, False)[name], ema=0.5, stop="6") for name in ("adamw", "muon")}


def half(shards: Path) -> dict[str, Run]:
    """In numbers of two bytes; the copies are FSDP2's. Both ranks go through the model twice, so that a sum is the same sum."""
    return {kind: runs.small(shards, precision=kind, stop="6") for kind in ("bf16", "fp16")}


def made(shards: Path, full: bool) -> Iterator[tuple[str, Run, int | None]]:
    """What two ranks are to make, in this order."""
    for name, run in cases(shards, full).items():
        yield name, replace(run, shard=True), None
    for name, run in halves(shards).items():
        yield f"{name}-one-two", replace(run, shard=True), None
        yield f"{name}-two-one", replace(run, shard=True), 3
    for name, run in half(shards).items():
        yield name, replace(run, shard=True), None
    yield "poisoned", replace(cases(shards, False)["lamb"], shard=True), None


@pytest.fixture(scope="module")
def places(shards: Path, tmp_path_factory: pytest.TempPathFactory, full: bool) -> tuple[Path, Path, list[dict[str, Any]]]:
    """Folders of the runs made alone and by two ranks, and what each rank had."""
    home = tmp_path_factory.mktemp("shares")
    alone, two = home / "alone", home / "two"
    for name, run in {**cases(shards, full), **half(shards)}.items():
        loop.train(replace(run, compile="no"), alone / name)
    for name, run in halves(shards).items():
        loop.train(run, alone / f"{name}-whole")
        loop.train(run, two / f"{name}-one-two", halt=3)
    (home / "ranks.py").write_text(RANKS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(home / "ranks.py")]
    command += [str(shards), str(two), str(Path(__file__).parent), "full" if full else ""]
    paths = os.pathsep.join([str(Path(runs.__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}, check=False, timeout=600 if full else 150
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return alone, two, [json.loads((two / f"{rank}.json").read_text()) for rank in range(2)]


def kept(run: Path) -> dict[str, Tensor]:
    """What the newest checkpoint holds beside its model: in float64 the weights too, exactly."""
    return checkpoint.restore(newest(run))[1]


def weights(run: Path) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in checkpoint.model(newest(run)).named_parameters()}


def measured(run: Path) -> dict[str, float]:
    return dict(checkpoint.restore(newest(run))[0].metrics)


def newest(run: Path) -> Path:
    path = checkpoint.newest(run)
    assert path is not None
    return path


def far(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Relative to each tensor's norm. Names and shapes are the same, or it is infinitely far."""
    if {name: (p.shape, p.dtype) for name, p in one.items()} != {name: (p.shape, p.dtype) for name, p in other.items()}:
        return float("inf")
    return max(float((p.double() - other[name].double()).norm() / p.double().norm().clamp(min=1e-12)) for name, p in one.items())


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in log.rows(run) if "loss" in row]


Places = tuple[Path, Path, list[dict[str, Any]]]


def test_shared_out_it_learns_the_same(places: Places, shards: Path, full: bool) -> None:
    """Weights, what the optimizer remembers, and losses: in float64, to what rounding leaves. The log and the folder's weights are in float32."""
    alone, two, _ = places
    for name in cases(shards, full):
        assert far(kept(alone / name), kept(two / name)) < (1e-6 if name == "compiled" else 1e-9), name
        assert far(weights(alone / name), weights(two / name)) < 1e-6, name
        assert measured(two / name) == pytest.approx(measured(alone / name), rel=1e-9), name
        assert losses(two / name) == pytest.approx(losses(alone / name), rel=1e-6), name


def test_each_rank_has_its_rows(places: Places) -> None:
    """Half of them, and what rows that cannot be halved leave over; its gradients and its optimizer's memory as well."""
    for name, one in places[2][0].items():
        other = places[2][1][name]
        assert one["sharded"]
        assert one["mine"] + other["mine"] == one["all"], name
        assert one["mine"] < 0.51 * one["all"], name
        assert other["mine"] < 0.51 * one["all"], name
        if name == "adamw":
            assert (one["states"], other["states"]) == (2 * one["mine"], 2 * other["mine"])
            assert one["parts"] == other["parts"] == 2, "the second one went through the model a second time, with nothing asked of it"


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_folder_does_not_tell(name: str, places: Places, shards: Path) -> None:
    """A run that one process began and two shared out ends where it would have ended, and so does one that two began."""
    alone, two, _ = places
    whole, back = alone / f"{name}-whole", two / f"{name}-two-one"
    assert sorted(path.name for path in (back / "checkpoints").iterdir()) == ["step-000003"]
    loop.train(halves(shards)[name], back)
    for run in (two / f"{name}-one-two", back):
        assert far(kept(whole), kept(run)) < 1e-9
        assert far(weights(whole), weights(run)) < 1e-6
        assert measured(run) == pytest.approx(measured(whole), rel=1e-9)


def test_in_numbers_of_two_bytes(places: Places) -> None:
    """Gradients are added up in float32, as they are alone: what differs is the order of two sums."""
    alone, two, _ = places
    for name in ("bf16", "fp16"):
        assert losses(two / name) == pytest.approx(losses(alone / name), rel=1e-5)
        assert far(weights(alone / name), weights(two / name)) < 0.05  # a step of AdamW goes by the sign where a gradient is next to nothing
        assert (kept(two / name).keys() >= {"scale:scale", "scale:good"}) == (name == "fp16")


def test_a_gradient_that_is_not_finite_ends_all_ranks(places: Places) -> None:
    """Though it is so on one of them, in rows that no other has."""
    said = [found["poisoned"]["said"] for found in places[2]]
    assert said[0] == said[1]
    assert said[0].startswith("the gradient of step 3 is not finite, first in model.encoder.layers.1.feed.up.weight (1 of ")


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_rows_are_dealt_out_and_brought_together(ranks: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.arange(rows * 3.0).view(rows, 3)
    shares = [Shares({"a": whole.shape}, Group(rank, ranks)) for rank in range(ranks)]
    mine = [one.mine(whole) for one in shares]
    assert torch.equal(torch.cat(mine), whole)
    assert [len(one) for one in mine[: len(whole.chunk(ranks))]] == [len(one) for one in whole.chunk(ranks)]
    sent: list[Tensor] = []
    monkeypatch.setattr(Group, "gather", lambda self, tensor: sent.append(tensor) or torch.cat(sent))  # type: ignore[func-returns-value]
    for one, part in zip(shares, mine, strict=True):
        found = one.whole(part, rows)
    assert torch.equal(found, whole)
    assert shares[0].mine(torch.tensor(7.0)) == 7, "a number alone is everybody's"


def test_alone_nothing_is_copied() -> None:
    one, whole = Shares({"a": torch.Size((2,))}), torch.ones(2)
    assert one.mine(whole).data_ptr() == one.whole(whole, 2).data_ptr() == one.gathered({"a/exp_avg": whole})["a/exp_avg"].data_ptr() == whole.data_ptr()
    assert one.norms(whole) is whole


def test_one_rank_has_nobody_to_share_with(shards: Path, tmp_path: Path) -> None:
    ready = Prepared(runs.small(shards, shard=True), tmp_path, Group())
    assert not ready.sharded
    assert dict(ready.precision.masters) == dict(ready.learner.named_parameters())
