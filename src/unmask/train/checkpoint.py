"""Checkpoints: a model folder and `training/`, which holds what else the run needs to go on exactly. Nothing is pickled.

`runs/x/checkpoints/step-000120/` is written beside and renamed, so it is there whole or not at all; `training/state.json` holds the hash of every
file. A checkpoint that is damaged all the same is named and passed over. The run folder itself holds the model as it is now, so
it loads as any model folder does.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from unmask.config import Clock, read_json
from unmask.data.stream import Place
from unmask.errors import UserError
from unmask.model import store
from unmask.model.model import Model
from unmask.model.store import Loaded
from unmask.train.feed import Begin

STATE = "training/state.json"
TENSORS = "training/state.safetensors"


@dataclass(frozen=True)
class State:
    """What a run is, between two steps, beside its tensors."""

    begin: Begin
    best: float | None = None
    worse: int = 0  # evaluations since the best
    metrics: Mapping[str, float] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        return {"begin": asdict(self.begin), "best": self.best, "worse": self.worse, "metrics": dict(self.metrics)}

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> State:
        begin = found["begin"]
        return cls(Begin(Place(**begin["place"]), Clock(**begin["clock"]), begin["block_share"]), found["best"], found["worse"], found["metrics"])


def save(run: Path, loaded: Loaded, tensors: Mapping[str, Tensor], state: State, keep: int, *, best: bool = False) -> Path:
    """One more checkpoint, the oldest beyond `keep` removed, and the run folder's own model made this one (or left the best one)."""
    name = f"step-{int(state.begin.clock.steps):06d}"
    home = run / "checkpoints"
    beside = home / f".{name}.{uuid.uuid4().hex[:8]}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        _model(loaded, beside, home / name)
        (beside / "training").mkdir()
        save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, beside / TENSORS)
        hashes = {path.relative_to(beside).as_posix(): sha256(path) for path in sorted(beside.rglob("*")) if path.is_file()}
        whole = {**state.json(), "files": hashes}
        (beside / STATE).write_text(json.dumps({**whole, "sha256": _digest(whole)}, indent=1) + "\n")
        for path in beside.rglob("*"):
            if path.is_file():
                _made_safe(path)
        # The model goes where people look for it before the checkpoint has its name: one that is killed in between makes these steps again.
        if best:
            _link(beside, run / "best")
        _link(run / "best" if (run / "best").is_dir() else beside, run)
        shutil.rmtree(home / name, ignore_errors=True)
        os.replace(beside, home / name)
        _made_safe(home)
    except (OSError, SafetensorError) as error:
        said = getattr(error, "strerror", None) or error
        raise UserError(
            f"{home / name} could not be written ({said}); free some space and run the same command again: the checkpoint before it is kept"
        ) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    for old in list(_all(run))[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return home / name


def _model(loaded: Loaded, beside: Path, place: Path) -> None:
    try:
        store.save(loaded, beside)
    except UserError as error:  # by the name that the checkpoint would have had
        raise UserError(f"{str(error).replace(str(beside.resolve()), str(place))}; the checkpoint before it is kept") from None


def newest(run: Path) -> Path | None:
    """The newest checkpoint that is whole."""
    for path in _all(run):
        fault = damage(path)
        if fault is None:
            return path
        warnings.warn(f"the checkpoint {path} is damaged ({fault}) and is passed over", stacklevel=2)
    return None


def restore(path: Path) -> tuple[State, dict[str, Tensor]]:
    return State.of(read_json(path / STATE)), load_file(path / TENSORS)


def model(path: Path) -> Model:
    return store.load(path).model


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, None where every file is what was written."""
    try:
        said = read_json(path / STATE)
        digest, files = said.pop("sha256"), said["files"]
    except (UserError, KeyError):
        return "its state.json cannot be read"
    if digest != _digest(said):
        return f"{STATE} is not what was written"
    return next((f"{name} is not what was written" for name, digest in files.items() if not (path / name).is_file() or sha256(path / name) != digest), None)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(said: Mapping[str, Any]) -> str:
    """Of what a state.json says, but this."""
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def clean(run: Path) -> None:
    """What a run that was killed left half-written."""
    for pattern in ("checkpoints/.*", "**/.*.new"):
        for left in list(run.glob(pattern)):
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)


def _all(run: Path) -> Iterator[Path]:
    """The newest first."""
    yield from sorted((run / "checkpoints").glob("step-*"), key=lambda path: (len(path.name), path.name), reverse=True)


def _link(source: Path, target: Path) -> None:
    """The model of a folder also in another one, by hard links where the disk has them; each put in its place at once."""
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        if not path.is_file() or name.parts[0] in ("training", "checkpoints", "best"):
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (target / name).is_file() and path.samefile(target / name):
            continue  # to rename one name of a file to another one does nothing, and would leave both
        beside = target / name.parent / f".{name.name}.new"
        beside.unlink(missing_ok=True)
        try:
            os.link(path, beside)
        except OSError:
            shutil.copyfile(path, beside)
        os.replace(beside, target / name)


def _made_safe(path: Path) -> None:
    """On the disk, not in its cache: else a machine that loses power has a name without what it names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def part(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key.partition(":")[2]: value for key, value in tensors.items() if key.startswith(f"{name}:")}
