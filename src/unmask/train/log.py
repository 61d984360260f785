"""What a run says: a line on the console, every step in `metrics.jsonl`, a picture of the loss, and a tracker where one is wanted."""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.data.places import extra
from unmask.train.doctor import Doctor

EVERY = 5.0  # seconds between two lines, on a terminal or piped
POINTS = 400  # of a curve
NAMES = '<text x="780" y="14" text-anchor="end">loss: training blue, validation red; by the share of the run</text>'


class Log:
    """Steps are kept as tensors on their device and fetched together, so that writing them down holds nothing up."""

    def __init__(
        self,
        run: Path,
        track: str,
        settings: Mapping[str, Any],
        *,
        quiet: bool = False,
        flops: float = 0.0,
        limit: float = 0.0,
        doctor: Doctor | None = None,
    ) -> None:
        self.run, self.quiet, self.flops, self.limit = run, quiet, flops, limit
        self.kept: list[tuple[dict[str, float], dict[str, Tensor]]] = []
        self.told = time.monotonic()
        self.since: tuple[float, float] | None = None
        self.speed = 0.0
        self.doctor = doctor or Doctor()
        self.tracker = _tracker(run, "" if quiet else track, settings)

    def step(self, facts: dict[str, float], values: dict[str, Tensor]) -> None:
        """Numbers that are known, and numbers that a device is still computing."""
        self.since = self.since or (facts["wall"], facts["tokens"])
        self.kept.append((facts, values))
        if len(self.kept) >= 256 or time.monotonic() - self.told > EVERY:
            self._flush()

    def flush(self) -> None:
        """Everything up to now: into the file, to the tracker, and of the last one a line. Who asks for it goes on to do something else than steps."""
        self._flush()
        self.since = None

    def _flush(self) -> None:
        self.told = time.monotonic()
        if not self.kept:
            return
        rows = []
        flat = torch.stack([value.detach().float().reshape(()) for _, values in self.kept for value in values.values()]).tolist()
        for facts, values in self.kept:
            rows.append({**facts, **{name: flat.pop(0) for name in values}})
        self.kept = []
        self._speed(rows[-1])
        self.write(rows)
        if not self.quiet:
            print(self._line(rows), file=sys.stderr, flush=True)
            for warning in self.doctor.look(rows, self.speed):
                print(f"doctor: {warning}", file=sys.stderr, flush=True)

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        if self.quiet:
            return
        with (self.run / "metrics.jsonl").open("a", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
        self.tracker(rows)

    def evaluated(self, facts: Mapping[str, float], *, best: bool) -> None:
        self.flush()
        self.write([facts])
        if not self.quiet:
            found = ", ".join(f"{name.removeprefix('valid.')} {value:.4f}" for name, value in facts.items() if name.startswith("valid."))
            print(f"validation at step {facts['step']:,.0f}: {found}{' (the best so far)' if best else ''}", file=sys.stderr, flush=True)
            draw(self.run)

    def _speed(self, row: Mapping[str, float]) -> None:
        now = (row["wall"], row["tokens"])
        if self.since is not None and now[0] > self.since[0]:
            self.speed = (now[1] - self.since[1]) / (now[0] - self.since[0])
        self.since = now

    def _line(self, rows: Sequence[Mapping[str, float]]) -> str:
        last = rows[-1]
        losses = " ".join(f"{name} {last[name]:.3f}" for name in last if name.endswith("loss"))
        parts = [f"step {last['step']:,.0f}", f"{last['share']:.1%}", losses, f"lr {last['lr']:.2e}", f"norm {last['norm']:.2f}", f"{self.speed:,.0f} tokens/s"]
        if self.limit and self.speed:
            parts.append(f"{self.speed * self.flops / self.limit:.0%} of the hardware")
        if last["share"] > 0:
            left = last["wall"] * (1 / last["share"] - 1)
            parts.append(f"{left / 60:,.0f} min left" if left > 90 else f"{left:,.0f} s left")
        return ", ".join(parts)


def rows(run: Path) -> list[dict[str, Any]]:
    """What was logged; a last line that was cut short is none."""
    path = run / "metrics.jsonl"
    found = []
    for line in path.read_text(encoding="utf-8").split("\n") if path.is_file() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def rewind(run: Path, step: int) -> None:
    """Forget what was logged of steps that will be made again."""
    kept = [row for row in rows(run) if row["step"] < step or ("valid.loss" in row and row["step"] == step)]
    beside = run / ".metrics.jsonl.new"
    beside.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    os.replace(beside, run / "metrics.jsonl")


def _tracker(run: Path, name: str, settings: Mapping[str, Any]) -> Any:
    if name == "tensorboard":
        extra("tensorboard", "tracking by TensorBoard", "track")  # asked by its own name: what torch has for it needs it
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(run / "tensorboard"))

        def add(rows: Sequence[Mapping[str, Any]]) -> None:
            for row in rows:
                for key, value in row.items():
                    if key != "step":
                        writer.add_scalar(key, value, int(row["step"]))
            writer.flush()  # what it still holds when the process ends is lost

        return add
    if name == "wandb":
        wandb = extra("wandb", "tracking by Weights & Biases", "wandb")
        # Else a second run of the same process would be told to the first one's page.
        started = wandb.init(project="unmask", name=run.name, config=dict(settings), dir=str(run), reinit="finish_previous")
        return lambda rows: [started.log(dict(row), step=int(row["step"])) for row in rows]
    return lambda rows: None


# ---- the picture


def draw(run: Path) -> None:
    """loss.svg: the training loss and the validation loss by the share of the run."""
    found = rows(run)
    train = [(row["share"], row["loss"]) for row in found if "loss" in row and math.isfinite(row["loss"])]
    valid = [(row["share"], row["valid.loss"]) for row in found if "valid.loss" in row and math.isfinite(row["valid.loss"])]
    if not train:
        return
    size = max(1, len(train) // POINTS)
    smooth = [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in (train[i : i + size] for i in range(0, len(train), size))]
    low, high = min(y for _, y in [*smooth, *valid]), max(y for _, y in [*smooth, *valid])
    span = high - low or 1.0

    def path(points: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{60 + 720 * x:.1f},{20 + 300 * (high - y) / span:.1f}" for x, y in points)

    marks = "".join(
        f'<text x="52" y="{24 + 75 * i}" text-anchor="end">{high - span * i / 4:.2f}</text><path d="M60 {20 + 75 * i}H780" class="grid"/>' for i in range(5)
    )
    shares = "".join(f'<text x="{60 + 180 * i}" y="340" text-anchor="middle">{i / 4:.0%}</text>' for i in range(5))
    text = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 360" font-family="system-ui, sans-serif" font-size="12">'
        "<style>text{fill:#555}.grid{stroke:#ddd}polyline{fill:none;stroke-width:1.5}</style>"
        f'<rect width="800" height="360" fill="#fff"/>{marks}{shares}<polyline points="{path(smooth)}" stroke="#3565a9"/>'
        f'<polyline points="{path(valid)}" stroke="#b3261e"/>{NAMES}</svg>\n'
    )
    beside = run / ".loss.svg.new"
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, run / "loss.svg")
