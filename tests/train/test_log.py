"""What a run says: every step in a file, a line now and then, a picture, and a tracker where one is wanted."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import re
import sys
import types
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask.errors import UserError
from unmask.objectives.mlm import MLM
from unmask.train import log
from unmask.train.doctor import WINDOW, Doctor
from unmask.train.log import EVERY, Log


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(log.time, "monotonic", lambda: now[0])
    return now


def facts(step: int, of: int = 100, wall: float | None = None) -> dict[str, float]:
    wall = 2.0 * (step + 1) if wall is None else wall
    return {"step": step, "tokens": 500 * (step + 1), "share": step / of, "seconds": wall, "wall": wall, "lr": 1e-3, "clip": 1.0}


def values(step: int) -> dict[str, torch.Tensor]:
    return {"loss": torch.tensor(8.0 - step / 64), "words.loss": torch.tensor([7.0]), "norm": torch.tensor(2.5, dtype=torch.float64)}


def begun(run: Path, steps: int, **settings: Any) -> Log:
    written = Log(run, "", {}, **settings)
    for step in range(steps):
        written.step(facts(step), values(step))
    return written


def evaluation(step: int, loss: float = 3.0) -> dict[str, float]:
    return {"step": step, "tokens": 500 * step, "share": step / 100, "valid.loss": loss, "valid.words": 2.5}


# ---- metrics.jsonl


def test_every_step_is_a_line(clock: list[float], tmp_path: Path) -> None:
    written = begun(tmp_path, 300)
    assert len(log.rows(tmp_path)) == 256, "so many are fetched together"
    written.flush()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    expected = [{**facts(step), "loss": 8.0 - step / 64, "words.loss": 7.0, "norm": 2.5} for step in range(300)]
    assert [json.loads(line) for line in lines] == expected == log.rows(tmp_path)
    assert list(json.loads(lines[0])) == list(expected[0])
    written.flush()
    assert len(log.rows(tmp_path)) == 300


def test_steps_are_written_every_so_often(clock: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = Log(tmp_path, "", {})
    for step in range(7):
        clock[0] += EVERY / 2
        written.step(facts(step), values(step))
    assert [row["step"] for row in log.rows(tmp_path)] == list(range(6))
    assert [line.split(",")[0] for line in capsys.readouterr().err.splitlines()] == ["step 2", "step 5"]


def test_a_last_line_that_was_cut_short_is_none(tmp_path: Path, clock: list[float]) -> None:
    begun(tmp_path, 3).flush()
    text = (tmp_path / "metrics.jsonl").read_text()
    for end in (len(text) - 2, len(text) - 30, text.rindex("{") + 1):
        (tmp_path / "metrics.jsonl").write_text(text[:end])
        assert [row["step"] for row in log.rows(tmp_path)] == [0, 1]
        log.rewind(tmp_path, 5)
        assert (tmp_path / "metrics.jsonl").read_text() == "".join(text.splitlines(keepends=True)[:2])


def test_rewind_forgets_the_steps_that_are_made_again(tmp_path: Path, clock: list[float]) -> None:
    """An evaluation after eight steps is of step 8, as the next one to come; a checkpoint of that step has seen it."""
    written = Log(tmp_path, "", {})
    for step in range(12):
        written.step(facts(step), values(step))
        if step % 4 == 3:
            written.evaluated(evaluation(step + 1), best=True)
    before = log.rows(tmp_path)
    assert len(before) == 15
    log.rewind(tmp_path, 12)
    assert log.rows(tmp_path) == before
    log.rewind(tmp_path, 8)
    after = log.rows(tmp_path)
    assert [row["step"] for row in after if "loss" in row] == list(range(8))
    assert [row["step"] for row in after if "valid.loss" in row] == [4, 8]
    assert after == before[:10]
    log.rewind(tmp_path, 0)
    assert log.rows(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_run_without_a_log(tmp_path: Path) -> None:
    assert log.rows(tmp_path) == []
    log.rewind(tmp_path, 0)
    assert log.rows(tmp_path) == []


# ---- the console

LINE = re.compile(
    r"step (?P<step>[\d,]+), (?P<share>[\d.]+)%, loss (?P<loss>[\d.]+) words.loss (?P<words>[\d.]+), lr (?P<lr>\S+), norm (?P<norm>[\d.]+), "
    r"(?P<speed>[\d,]+) tokens/s(, (?P<used>\d+)% of the hardware)?(, (?P<left>[\d,]+) (?P<unit>min|s) left)?"
)


def line(err: str) -> dict[str, str]:
    found = LINE.fullmatch(err.splitlines()[-1])
    assert found is not None, err
    return found.groupdict()


def test_the_line_of_the_console(clock: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun(tmp_path, 21, flops=4e6, limit=1e10).flush()
    out, err = capsys.readouterr()
    found = line(err)
    assert out == ""
    assert (found["step"], found["share"], found["loss"], found["words"], found["lr"], found["norm"]) == ("20", "20.0", "7.688", "7.000", "1.00e-03", "2.50")
    assert found["speed"] == "250"  # 500 tokens in 2 seconds
    assert found["used"] == "10"  # 250 tokens/s of 4e6 operations each, of 1e10
    assert (found["left"], found["unit"]) == ("3", "min")  # 42 s for a fifth


@pytest.mark.parametrize(("share", "wall", "left"), [(0.5, 80.0, "80 s left"), (0.5, 100.0, "2 min left"), (0.001, 10.0, "166 min left"), (0.0, 10.0, None)])
def test_what_is_left(share: float, wall: float, left: str | None, clock: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = Log(tmp_path, "", {})
    written.step({**facts(1234), "share": share, "wall": wall}, values(0))
    written.flush()
    err = capsys.readouterr().err
    assert err.startswith("step 1,234, ")
    assert err.endswith(f", {left}\n" if left else "0 tokens/s\n")


def test_a_pause_is_not_throughput(clock: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Between an evaluation and the next step lies the time that it took; then again what a step takes."""
    written, wall = Log(tmp_path, "", {}), 0.0
    for step in range(40):
        wall += 2.0 + 1000.0 * (step in (10, 20, 30))
        written.step(facts(step, wall=wall), values(step))
        if step in (9, 19):
            written.evaluated(evaluation(step + 1), best=False)
        if step == 29:
            written.flush()  # a checkpoint
    written.flush()
    speeds = [LINE.fullmatch(one)["speed"] for one in capsys.readouterr().err.splitlines() if one.startswith("step")]  # type: ignore[index]
    assert speeds == ["250"] * 4


def test_throughput_is_of_the_last_steps(clock: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written, wall = Log(tmp_path, "", {}), 0.0
    for step in range(30):
        wall += 2.0 if step < 15 else 4.0
        clock[0] += 2.0 if step < 15 else 4.0
        written.step(facts(step, wall=wall), values(step))
    speeds = [LINE.fullmatch(one)["speed"] for one in capsys.readouterr().err.splitlines()]  # type: ignore[index]
    assert (speeds[0], speeds[1], speeds[-1]) == ("250", "250", "125")


def test_other_ranks_are_quiet(clock: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """They write nothing, print nothing, and start no tracker of their own."""
    written = Log(tmp_path, "tensorboard", {}, quiet=True)
    for step in range(300):
        written.step({**facts(step), "clip": 1.0}, values(step))
    written.evaluated(evaluation(300), best=True)
    written.flush()
    assert capsys.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_an_evaluation_is_a_line(clock: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = begun(tmp_path, 3)
    written.evaluated(evaluation(1500), best=True)
    written.evaluated(evaluation(1600), best=False)
    first, second, third = capsys.readouterr().err.splitlines()
    assert first.startswith("step 2, "), "the steps before it come first"
    assert second == "validation at step 1,500: loss 3.0000, words 2.5000 (the best so far)"
    assert third == "validation at step 1,600: loss 3.0000, words 2.5000"
    assert [row["step"] for row in log.rows(tmp_path)] == [0, 1, 2, 1500, 1600]


def test_the_doctor_is_heard(clock: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = Log(tmp_path, "", {}, doctor=Doctor((MLM(),), 7.1))
    for step in range(5 * WINDOW):
        written.step(facts(step, of=10_000), {**values(0), "norm": torch.tensor(9.0)})
    written.flush()
    said = [one for one in capsys.readouterr().err.splitlines() if one.startswith("doctor: ")]
    assert len(said) == 2
    assert said[0].startswith(f"doctor: every one of the last {WINDOW} gradients was clipped")
    assert said[1].startswith("doctor: the loss of masked words stays at 7.00, and who knows only how frequent each piece is has 7.10")


# ---- the picture


def curves(run: Path) -> list[list[tuple[float, float]]]:
    root = ET.fromstring((run / "loss.svg").read_text(encoding="utf-8"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    found = [one.attrib["points"] for one in root.iter("{http://www.w3.org/2000/svg}polyline")]
    return [[(float(x), float(y)) for x, y in (point.split(",") for point in points.split())] for points in found]


def test_the_picture_has_both_curves(clock: list[float], tmp_path: Path) -> None:
    written = begun(tmp_path, 100)
    written.evaluated(evaluation(50, 8.5), best=True)
    written.evaluated(evaluation(100, 4.5), best=True)
    train, valid = curves(tmp_path)
    assert len(train) == 100
    assert train[0][0] == 60
    assert train[-1][0] == pytest.approx(60 + 720 * 0.99, abs=0.1)
    assert valid == [(420.0, 20.0), (780.0, 320.0)]  # the highest of all at the top, the lowest at the bottom
    assert all(two[1] > one[1] for one, two in itertools.pairwise(train)), "it falls"
    text = (tmp_path / "loss.svg").read_text()
    assert ">8.50</text>" in text
    assert ">4.50</text>" in text


def test_a_long_run_is_a_short_curve(tmp_path: Path) -> None:
    rows = [{"step": step, "share": step / 5000, "loss": 3.0 + step % 2} for step in range(5000)] + [evaluation(10), evaluation(20)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    log.draw(tmp_path)
    train, _ = curves(tmp_path)
    assert log.POINTS <= len(train) <= log.POINTS + 30
    assert len({y for _, y in train}) == 1, "neighbours are averaged: noise of every second step is none"


def test_what_cannot_be_drawn(tmp_path: Path) -> None:
    log.draw(tmp_path)
    assert not (tmp_path / "loss.svg").exists()
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "share": 0.0, "loss": NaN}\n{"step": 1, "share": 0.5, "loss": 2.0}\n')
    log.draw(tmp_path)
    assert curves(tmp_path) == [[(420.0, 20.0)], []]


# ---- trackers


class Board:
    """As torch.utils.tensorboard is, as far as it is used. What is not flushed is lost."""

    def __init__(self, place: str) -> None:
        self.place, self.kept, self.held = place, [], []  # type: ignore[var-annotated]

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.held.append((name, value, step))

    def flush(self) -> None:
        self.kept, self.held = self.kept + self.held, []


def with_modules(monkeypatch: pytest.MonkeyPatch, found: dict[str, Any]) -> None:
    """Libraries that are there, or not, whatever is installed."""
    real = importlib.import_module

    def load(name: str, *more: Any) -> Any:
        if name.split(".")[0] in ("tensorboard", "wandb") or "tensorboard" in name:
            if name in found:
                return found[name]
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *more)

    monkeypatch.setattr(importlib, "import_module", load)


def test_tensorboard_is_told_everything(clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boards: list[Board] = []

    def made(place: str) -> Board:
        boards.append(Board(place))
        return boards[-1]

    with_modules(monkeypatch, {"tensorboard": types.ModuleType("tensorboard"), "torch.utils.tensorboard": types.SimpleNamespace(SummaryWriter=made)})
    written = Log(tmp_path, "tensorboard", {})
    for step in range(3):
        written.step(facts(step), values(step))
    written.evaluated(evaluation(3), best=True)
    assert boards[0].place == str(tmp_path / "tensorboard")
    told = {(step, name): value for name, value, step in boards[0].kept}
    assert told == {(row["step"], name): value for row in log.rows(tmp_path) for name, value in row.items() if name != "step"}
    assert (3, "valid.loss") in told
    assert (2, "words.loss") in told


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tensorboard", r"tracking by TensorBoard needs tensorboard: pip install 'unmask\[track\]'"),
        ("wandb", r"tracking by Weights & Biases needs wandb: pip install 'unmask\[wandb\]'"),
    ],
)
def test_a_tracker_that_is_not_there(name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_modules(monkeypatch, {})
    with pytest.raises(UserError, match=says):
        Log(tmp_path, name, {})


def test_wandb_is_told_everything(clock: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    started = types.SimpleNamespace(log=lambda row, step: told.append((step, row)))

    def init(**given: Any) -> Any:
        told.append(given)
        return started

    with_modules(monkeypatch, {"wandb": types.SimpleNamespace(init=init)})
    written = Log(tmp_path, "wandb", {"seed": 3})
    for step in range(3):
        written.step(facts(step), values(step))
    written.evaluated(evaluation(3), best=True)
    assert told[0] == {"project": "unmask", "name": tmp_path.name, "config": {"seed": 3}, "dir": str(tmp_path), "reinit": "finish_previous"}
    assert told[1:] == [(row["step"], row) for row in log.rows(tmp_path)]


def test_nothing_is_loaded_for_who_tracks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> None:
        raise AssertionError(given)

    monkeypatch.setattr(importlib, "import_module", refuse)
    Log(tmp_path, "", {})
    assert "wandb" not in sys.modules


def test_losses_that_are_not_finite_are_written(clock: list[float], tmp_path: Path) -> None:
    written = Log(tmp_path, "", {})
    written.step(facts(0), {**values(0), "loss": torch.tensor(math.nan)})
    written.flush()
    assert math.isnan(log.rows(tmp_path)[0]["loss"])
