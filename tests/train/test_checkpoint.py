"""Checkpoints: whole or not at all, the newest that is whole is found, and the run folder is a model at every moment."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import runs
import unmask
from unmask.config import Clock
from unmask.data.stream import Place
from unmask.errors import UserError
from unmask.model import families
from unmask.model.card import Card
from unmask.model.store import Loaded
from unmask.tokenizer import Tokenizer
from unmask.train import checkpoint
from unmask.train.checkpoint import STATE, TENSORS, State
from unmask.train.feed import Begin

TENSORS_OF_A_RUN = {"optimizer:a/step": torch.tensor(3.0), "optimizer:a/b": torch.arange(6.0).view(2, 3).t(), "masters:beside.x": torch.ones(2)}


@pytest.fixture(scope="module")
def tokenizer(shards: Path) -> Tokenizer:
    return Tokenizer.load(shards / "tokenizer")


@pytest.fixture
def saved(tokenizer: Tokenizer, tmp_path: Path) -> Callable[..., Path]:
    """A checkpoint of that step; every weight of its model is the step's number over a thousand."""
    shape = replace(runs.shape(), heads=(("words", 400), ("next", 2)))

    def save(step: int, keep: int = 2, *, best: bool = False, run: str = "run") -> Path:
        model = families.new(shape)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(step / 1000)
        loaded = Loaded(model, Card(length=64), tokenizer, {}, {"metrics": {"step": step}})
        return checkpoint.save(tmp_path / run, loaded, TENSORS_OF_A_RUN, state(step), keep, best=best)

    return save


def state(step: int) -> State:
    return State(Begin(Place(1, 2, 3), Clock(step, step * 512, 1.25, 3.5, 0.1), 0.07), best=1.5, worse=2, metrics={"valid.loss": 1.5})


def names(place: Path) -> set[str]:
    return {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}


def step_of(folder: Path) -> float:
    """Which step's model lies there."""
    values = {float(value) for p in unmask.load(folder).model.parameters() for value in p.detach().flatten()[:3]}
    assert len(values) == 1
    return round(values.pop() * 1000)


def test_a_state_comes_back() -> None:
    for one in (state(7), State(Begin())):
        assert State.of(json.loads(json.dumps(one.json()))) == one


def test_what_is_written_is_whole(saved: Callable[..., Path]) -> None:
    place = saved(4)
    files = json.loads((place / STATE).read_text())["files"]
    assert set(files) == names(place) - {STATE}
    assert {"config.json", "model.safetensors", "tokenizer.json", TENSORS} <= set(files)
    assert all(hashlib.sha256((place / name).read_bytes()).hexdigest() == digest for name, digest in files.items())
    assert checkpoint.damage(place) is None


def test_it_is_read_as_it_was_written(saved: Callable[..., Path]) -> None:
    place = saved(4)
    found, tensors = checkpoint.restore(place)
    assert found == state(4)
    assert tensors.keys() == TENSORS_OF_A_RUN.keys()
    assert all(torch.equal(tensors[name], value) for name, value in TENSORS_OF_A_RUN.items())
    assert set(checkpoint.part(tensors, "optimizer")) == {"a/step", "a/b"}
    assert set(checkpoint.part(tensors, "masters")) == {"beside.x"}
    assert all(bool((p == 0.004).all()) for p in checkpoint.model(place).parameters())


# ---- damage


def flipped(path: Path, at: int) -> None:
    """One bit is another; the file is a new one, as what is linked to it elsewhere is not damaged with it."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.unlink()
    path.write_bytes(data)


def digit(path: Path) -> None:
    """A state that reads well and says something else."""
    flipped(path, path.read_bytes().index(b'"batch": 3') + len('"batch": '))


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a file is missing": (lambda place: (place / "config.json").unlink(), "config.json is not what was written"),
    "a byte is another": (lambda place: flipped(place / "model.safetensors", -5), "model.safetensors is not what was written"),
    "the optimizer's too": (lambda place: flipped(place / TENSORS, -1), f"{TENSORS} is not what was written"),
    "a file is cut short": (lambda place: os.truncate(place / TENSORS, 100), f"{TENSORS} is not what was written"),
    "no state": (lambda place: (place / STATE).unlink(), "its state.json cannot be read"),
    "half a state": (lambda place: os.truncate(place / STATE, 300), "its state.json cannot be read"),
    "a state of zeros": (lambda place: (place / STATE).write_bytes(bytes(500)), "its state.json cannot be read"),
    "a state of something else": (lambda place: (place / STATE).write_text("{}"), "its state.json cannot be read"),
    "another state": (lambda place: digit(place / STATE), f"{STATE} is not what was written"),
    "nothing at all": (lambda place: [shutil.rmtree(place), place.mkdir()], "its state.json cannot be read"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_the_newest_that_is_whole_is_found(kind: str, saved: Callable[..., Path], tmp_path: Path) -> None:
    do, says = DAMAGE[kind]
    whole, newest = saved(4), saved(8)
    assert checkpoint.newest(tmp_path / "run") == newest
    do(newest)
    with pytest.warns(UserWarning, match=rf"the checkpoint \S*step-000008 is damaged \({says}\) and is passed over"):
        assert checkpoint.newest(tmp_path / "run") == whole
    do(whole)
    with pytest.warns(UserWarning, match="is passed over") as said:
        assert checkpoint.newest(tmp_path / "run") is None
    assert len(said) == 2


def test_every_byte_of_the_state_counts(saved: Callable[..., Path]) -> None:
    place = saved(4)
    text = (place / STATE).read_bytes()
    kept = json.loads(text)
    for at in range(0, len(text), 7):
        flipped(place / STATE, at)
        try:
            same = json.loads((place / STATE).read_bytes()) == kept  # a blank that became another, or a 0 behind a point
        except ValueError:
            same = False
        assert same or checkpoint.damage(place) is not None, text[max(at - 20, 0) : at + 20]
        (place / STATE).write_bytes(text)


def test_where_there_is_none(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) is None
    checkpoint.clean(tmp_path)


def test_half_written_ones_are_none(saved: Callable[..., Path], tmp_path: Path) -> None:
    whole = saved(4)
    shutil.copytree(whole, tmp_path / "run" / "checkpoints" / ".step-000008.0123abcd")
    assert checkpoint.newest(tmp_path / "run") == whole


def test_the_newest_is_by_number(saved: Callable[..., Path], tmp_path: Path) -> None:
    """A million steps have one digit more."""
    saved(999_999)
    last = saved(1_000_000)
    assert checkpoint.newest(tmp_path / "run") == last
    saved(1_000_001, keep=1)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-1000001"]


# ---- the folder of the run


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_so_many_are_kept(keep: int, saved: Callable[..., Path], tmp_path: Path) -> None:
    for step in (2, 4, 6, 8):
        saved(step, keep)
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == [f"step-{step:06d}" for step in (2, 4, 6, 8)][-keep:]


def test_the_folder_is_the_newest_model(saved: Callable[..., Path], tmp_path: Path) -> None:
    for step in (2, 4):
        place = saved(step)
        assert names(tmp_path / "run") - {f"checkpoints/{name}" for name in names(tmp_path / "run" / "checkpoints")} == {
            name for name in names(place) if not name.startswith("training/")
        }
        assert step_of(tmp_path / "run") == step
        assert json.loads((tmp_path / "run" / "provenance.json").read_text())["metrics"]["step"] == step


def test_the_best_is_kept_whatever_comes(saved: Callable[..., Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    saved(2, keep=1)
    saved(4, keep=1, best=True)
    for step in (6, 8):
        saved(step, keep=1)
        assert (step_of(run / "best"), step_of(run), step_of(run / "checkpoints" / f"step-{step:06d}")) == (4, 4, step)
        assert not [name for name in names(run) if name.rpartition("/")[2].startswith(".")], "linked to what is there already"
    saved(10, keep=1, best=True)
    assert (step_of(run / "best"), step_of(run)) == (10, 10)


def test_what_is_linked_stays_as_it_was(saved: Callable[..., Path], tmp_path: Path) -> None:
    """The files of a folder and of its checkpoint are one file with two names: a later write may go to neither."""
    first = saved(2, keep=5)
    assert (first / "model.safetensors").samefile(tmp_path / "run" / "model.safetensors"), "else this shows nothing"
    before = {name: (first / name).read_bytes() for name in names(first)}
    saved(4, keep=5, best=True)
    saved(6, keep=5)
    assert {name: (first / name).read_bytes() for name in names(first)} == before
    assert checkpoint.damage(first) is None


def test_it_is_there_on_disks_without_links(saved: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    for step in (2, 4):
        saved(step, best=step == 2)
    assert (step_of(tmp_path / "run"), step_of(tmp_path / "run" / "best")) == (2, 2)


class Killed(BaseException):
    """As SIGKILL would: nothing more is done."""


@pytest.mark.parametrize("best", [False, True])
def test_killed_between_any_two_names_the_folder_loads(best: bool, saved: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no checkpoint is found whose model is not in place: a run that ended with it would never put it there."""
    monkeypatch.setattr(checkpoint, "_made_safe", lambda path: None)  # a disk takes its time, and no power fails here
    real, run = os.replace, tmp_path / "run"
    finished = allowed = 0
    while not finished:
        shutil.rmtree(run, ignore_errors=True)
        saved(2, best=best)
        count = [0]

        def replaced(source: Any, target: Any, count: list[int] = count, allowed: int = allowed) -> None:
            if count[0] == allowed:
                raise Killed
            count[0] += 1
            real(source, target)

        with monkeypatch.context() as patched:
            patched.setattr(os, "replace", replaced)
            patched.setattr(shutil, "rmtree", lambda *given, **more: None)
            try:
                saved(4, best=best)
                finished = 1
            except Killed:
                allowed += 1
        assert unmask.load(run)
        newest = checkpoint.newest(run)
        assert newest is not None
        if newest.name == "step-000004":
            assert step_of(run) == 4
        checkpoint.clean(run)
        assert not [name for name in names(run) if any(part.startswith(".") for part in name.split("/"))]
        saved(4, best=best)
        assert step_of(run) == 4
        assert checkpoint.damage(run / "checkpoints" / "step-000004") is None
    assert allowed > 6


def test_clean_removes_what_a_kill_left(saved: Callable[..., Path], tmp_path: Path) -> None:
    place, run = saved(4, best=True), tmp_path / "run"
    (run / "metrics.jsonl").write_text("{}\n")
    before = names(run)
    shutil.copytree(place, run / "checkpoints" / ".step-000008.0123abcd")
    shutil.copytree(place, run / "checkpoints" / "..step-000008.0123abcd.89abcdef")
    for left in (".metrics.jsonl.new", "best/.config.json.new", "1_Pooling/.config.json.new"):
        (run / left).parent.mkdir(exist_ok=True)
        (run / left).write_text("half")
    checkpoint.clean(run)
    assert names(run) == before


@pytest.mark.parametrize("where", ["link", "replace"])
def test_a_full_disk_is_one_sentence(where: str, saved: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the folder's own files are put in place, too."""
    kept = saved(2)

    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", full)
        patched.setattr(os, "link", full)
        if where == "replace":
            patched.setattr(os, "replace", full)
        with pytest.raises(UserError, match=r"step-000004.* could not be written \(No space left on device\); free some space"):
            saved(4)
    assert checkpoint.newest(tmp_path / "run") == kept
    assert not [path for path in (tmp_path / "run" / "checkpoints").iterdir() if path != kept]
    assert step_of(saved(4)) == 4


def test_the_same_step_once_more(saved: Callable[..., Path]) -> None:
    place = saved(4)
    (place / "model.safetensors").unlink()
    assert step_of(saved(4)) == 4
    assert checkpoint.damage(place) is None


def test_tensors_of_any_kind_are_kept(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tensors: dict[str, Tensor] = {"a:x": torch.rand(3, 4).t(), "a:y": torch.rand(2, dtype=torch.float64, requires_grad=True), "b:z": torch.tensor(7)}
    loaded = Loaded(families.new(replace(runs.shape(), heads=(("words", 400),))), Card(), tokenizer, {}, {})
    _, found = checkpoint.restore(checkpoint.save(tmp_path, loaded, tensors, State(Begin()), 1))
    assert all(torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in tensors.items())
