"""The plan of a run: what it says of the whole is what the whole takes, and of a batch that does not fit, which one does."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import corpora
import runs
from unmask.errors import UserError
from unmask.model import families
from unmask.tokenizer import Tokenizer
from unmask.train import log, loop, plan
from unmask.train.distribute import Group
from unmask.train.plan import Plan, largest, said, too_large
from unmask.train.prepared import Prepared
from unmask.train.run import Run
from unmask.train.schedule import staged


def small(shards: Path, **changes: Any) -> Run:
    return runs.small(shards, **{"evaluate_tokens": 0, **changes})


@pytest.mark.parametrize(
    ("stop", "step"), [("12", ((0.0, 2),)), ("12", ((0.0, 1), (0.5, 3))), ("9000tok", ((0.0, 1), (0.5, 3))), ("1ep", ((0.0, 2),)), ("2ep", ((0.0, 3),))]
)
def test_the_plan_is_what_the_run_takes(stop: str, step: Any, shards: Path, tmp_path: Path) -> None:
    run = small(shards, stop=stop, save="1000")
    run = replace(run, data=replace(run.data, step=step, tokens=128))  # in several blocks
    found = plan.plan(run, Group(), seconds=0.0)
    result = loop.train(run, tmp_path / "run")
    rows = [row for row in log.rows(tmp_path / "run") if "loss" in row]
    assert found.steps == pytest.approx(result.steps, rel=0.1)
    assert found.tokens == pytest.approx(rows[-1]["tokens"], rel=0.1)
    size = sum(staged(step, row["share"]) for row in rows) / len(rows)
    assert found.tokens_per_step == pytest.approx(rows[-1]["tokens"] / len(rows) / size * step[0][1], rel=0.1)
    passed = sum(int(batch.layout.lengths.sum()) for batch in epoch(run, tmp_path))
    assert found.tokens / found.epochs == pytest.approx(passed, rel=0.06), "more than the text, by what a block of 35 documents tells of it"
    assert found.seconds == pytest.approx(found.tokens / found.speed)
    disk = sum(path.stat().st_size for path in (tmp_path / "run" / "checkpoints").rglob("*") if path.is_file())
    assert disk < found.disk < 5 * disk, "of the checkpoints that will be kept, here is one"


def test_of_several_corpora_an_epoch_is_as_many_documents_as_they_have(shards: Path, tmp_path: Path) -> None:
    """By their weights, so of the one more than once and of the other not all."""
    texts = corpora.documents(60, seed=8, longest=3)
    short = corpora.shards(tmp_path, Tokenizer.load(shards / "tokenizer"), texts)
    run = small(shards, stop="1ep")
    run = replace(run, data=replace(run.data, path=(str(shards), str(short)), weights=(1.0, 9.0), tokens=128))
    found = plan.plan(run, Group(), seconds=0.0)
    assert found.tokens == pytest.approx(sum(int(batch.layout.lengths.sum()) for batch in epoch(run, tmp_path)), rel=0.1)
    assert found.epochs == pytest.approx(1)


def epoch(run: Run, place: Path) -> list[Any]:
    """Its batches."""
    found = []
    for after, batch in Prepared(run, place, Group()).stream(0.0).batches():
        found.append(batch)
        if after.epoch:
            break
    return found


def test_by_wall_clock_it_is_what_is_measured(shards: Path) -> None:
    found = plan.plan(small(shards, stop="90s"), Group(), seconds=0.0)
    assert found.seconds == pytest.approx(90)
    assert found.tokens == pytest.approx(90 * found.speed)
    assert found.steps == pytest.approx(found.tokens / found.tokens_per_step, rel=1e-3)
    assert found.speed > 1000


def test_speed_is_of_the_steps_after_the_first(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one compiles and warms up; it counts neither as tokens nor as time."""
    real, now, tokens = loop._step, [0.0], []

    def slow(ready: Prepared, step: Any) -> Any:
        now[0] += 2.0 if step.number else 500.0
        tokens.append(step.tokens)
        return real(ready, step)

    monkeypatch.setattr(loop, "_step", slow)
    monkeypatch.setattr(plan, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    found = plan.plan(small(shards), Group(), seconds=11.0)
    assert len(tokens) == 7
    assert found.speed == pytest.approx(sum(tokens[1:]) / 12)


def test_what_is_kept_on_disk(shards: Path) -> None:
    """Of each kept checkpoint, the best one's too: the weights, two moments (Muon: mostly one), and beside a running mean the weights themselves."""
    run = small(shards, evaluate_tokens=2_000)
    size = 4 * plan.plan(run, Group(), seconds=0.0).parameters
    for change, times in (({}, 9), ({"keep": 4}, 15), ({"ema": 0.9}, 12), ({"optimizer": replace(run.optimizer, name="muon")}, 6)):
        assert plan.plan(replace(run, **change), Group(), seconds=0.0).disk == size * times  # type: ignore[arg-type]


def test_it_reads_well(shards: Path) -> None:
    run = small(shards, stop="12", together=2)
    found = plan.plan(replace(run, data=replace(run.data, step=((0.0, 3),))), Group(), seconds=0.0)
    lines = dict(found.lines())
    model = families.build(Prepared(run, shards, Group()).loaded.model.config)
    assert lines["parameters"] == f"{sum(p.numel() for p in model.parameters()):,}"
    assert re.fullmatch(r"1,[45]\d\d tokens in 3 micro-batches, 2 at once", lines["a step"])
    assert re.fullmatch(r"[\d,]+ tokens/s, \d+% of what a matrix product reaches here", lines["speed"])
    assert lines["the run"].startswith("12 steps, 1")
    assert lines["memory"] == f"{found.memory / 1e9:,.1f} GB at the most"
    assert found.memory > 1e8


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (0.4, "0 seconds"),
        (119.0, "119 seconds"),
        (120.0, "2.0 minutes"),
        (7_199.0, "120.0 minutes"),
        (7_200.0, "2.0 hours"),
        (2 * 86_400.0, "2.0 days"),
        (86_400.0 * 2_000, "2,000.0 days"),
    ],
)
def test_times_are_said_for_people(seconds: float, says: str) -> None:
    assert said(seconds) == says


# ---- what does not fit


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Memory for so many tokens at once; gives the sizes that were tried."""
    tried: list[int] = []
    held: list[weakref.ref[Any]] = []
    real = loop.backward

    def of(size: int) -> list[int]:
        def backward(ready: Prepared, step: Any) -> Any:
            weight = ready.precision.masters["model.encoder.layers.0.feed.up.weight"]
            assert all(one() is None or one() is weight for one in held), "what was tried before is still held"
            held.append(weakref.ref(weight))
            wanted = ready.run.data.tokens * ready.run.together
            if not tried or tried[-1] != wanted:
                tried.append(wanted)
            if wanted > size:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return real(ready, step)

        monkeypatch.setattr(loop, "backward", backward)
        return tried

    return of


@pytest.mark.parametrize(("fits", "found", "tries"), [(256, 256, [256]), (255, 128, [256, 128]), (70, 64, [256, 128, 64]), (63, 0, [256, 128, 64])])
def test_halves_until_it_fits(fits: int, found: int, tries: list[int], memory: Callable[[int], list[int]], shards: Path) -> None:
    """Not below the longest sequence, of 48 tokens."""
    tried = memory(fits)
    assert largest(small(shards, recompute=fits == 70), Group()) == found  # its layers hold themselves
    assert tried == tries


def test_together_is_given_up_first(memory: Callable[[int], list[int]], shards: Path) -> None:
    memory(600)
    assert largest(small(shards, together=2), Group()) == 512


def refused(run: Run) -> UserError:
    """As the command does it: while the error is being handled."""
    try:
        plan.plan(run, Group(), seconds=0.0)
    except torch.OutOfMemoryError:
        return too_large(run, Group())
    raise AssertionError


def test_what_fits_is_named_and_does_fit(memory: Callable[[int], list[int]], shards: Path) -> None:
    memory(130)
    run = small(shards)
    error = str(refused(run))
    assert error == (
        "micro-batches of 512 tokens do not fit into memory; 128 do: "
        "say --data.tokens 128 --data.step '[[0, 8]]' --together 1, which makes steps of the same size"
    )
    for name, word in re.findall(r"--(\S+) ('[^']*'|\d+)", error):
        run = run.set(name, word.strip("'"))
    assert run.data.tokens * run.data.step[0][1] == 512 * 2
    assert plan.plan(run, Group(), seconds=0.0).tokens_per_step == pytest.approx(1024, rel=0.1)


def test_the_parts_that_go_together_are_named(memory: Callable[[int], list[int]], shards: Path) -> None:
    memory(300)
    run = small(shards, together=2)
    assert str(refused(run)).startswith("micro-batches of 512 tokens, 2 at once, do not fit into memory; 256 do: say --data.tokens 256 --data.step '[[0, 4]]'")


def test_where_nothing_fits(memory: Callable[[int], list[int]], shards: Path) -> None:
    memory(10)
    assert str(refused(small(shards))) == "not even one sequence fits into memory; choose a smaller model, or shorter sequences with --data.longest"


@pytest.mark.parametrize(("fits", "recompute", "says"), [(64, False, (True, True)), (64, True, (True, False)), (0, False, (False, True)), (0, True, None)])
def test_layers_computed_again_may_do(fits: int, recompute: bool, says: tuple[bool, bool] | None, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a smaller batch or alone; it is not offered to who does so already."""
    real = loop.backward

    def backward(ready: Prepared, step: Any) -> Any:
        if ready.run.data.tokens > fits and not (ready.run.recompute and not recompute):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(ready, step)

    monkeypatch.setattr(loop, "backward", backward)
    said = str(refused(small(shards, recompute=recompute)))
    ways = "64 do: say --data.tokens 64" in said, said.endswith("they do as they are, for a third more work, with --recompute yes")
    assert ways == (says or (False, False))
    assert ("not even one sequence fits" in said) == (says is None)


STAGES = ((0.0, 16), (0.5, 48))


def test_each_length_is_measured(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences grow on the way, and with them time and memory: a step of the first ones takes a second here, of the last ones three."""
    run = small(shards, stop="1000")
    run = replace(run, data=replace(run.data, longest=STAGES, step=((0.0, 1), (0.5, 2))))
    real, now = loop._step, [0.0]

    def slow(ready: Prepared, step: Any) -> Any:
        now[0] += 3.0 if longest(step) > 16 else 1.0
        return real(ready, step)

    monkeypatch.setattr(loop, "_step", slow)
    monkeypatch.setattr(plan, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    found = plan.plan(run, Group(), seconds=0.0)
    assert found.seconds == pytest.approx(500 * 1.0 + 500 * 3.0, rel=0.05)
    assert found.steps == pytest.approx(1000)
    assert found.tokens == pytest.approx(512 * (500 + 2 * 500), rel=0.1)
    assert found.tokens / found.seconds == pytest.approx(found.speed)


def longest(step: Any) -> int:
    return max(int(batch.layout.lengths.max()) for _, batch in step.parts)


def test_a_length_that_comes_late_and_does_not_fit_is_foreseen(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = loop.backward

    def backward(ready: Prepared, step: Any) -> Any:
        if longest(step) > 16 and ready.run.data.tokens > 128:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(ready, step)

    monkeypatch.setattr(loop, "backward", backward)
    run = small(shards)
    assert "; 128 do: say --data.tokens 128" in str(refused(replace(run, data=replace(run.data, longest=STAGES))))


def test_the_thread_of_a_plan_ends_with_it(shards: Path, memory: Callable[[int], list[int]]) -> None:
    before = threading.active_count()
    assert isinstance(plan.plan(small(shards), Group(), seconds=0.0), Plan)
    memory(10)
    with pytest.raises(torch.OutOfMemoryError):
        plan.plan(small(shards), Group(), seconds=0.0)
    assert threading.active_count() == before
