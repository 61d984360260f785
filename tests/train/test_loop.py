"""The loop: it learns, what it writes is a model, and stopped anywhere it ends where it would have ended."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import runs
import unmask
from unmask.config import Duration
from unmask.errors import UserError
from unmask.model import store
from unmask.train import checkpoint, log, loop, precision
from unmask.train.distribute import Group
from unmask.train.feed import Begin
from unmask.train.prepared import Prepared
from unmask.train.run import Run
from unmask.train.schedule import Schedule

Weights = Mapping[str, torch.Tensor]


def weights(folder: Path) -> Weights:
    return {name: p.detach() for name, p in store.load(folder).model.named_parameters()}


def same(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def far(one: Weights, other: Weights) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.fixture(scope="module")
def whole(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody stopped."""
    out = tmp_path_factory.mktemp("whole") / "run"
    loop.train(runs.small(shards), out)
    return out


def test_it_learns(shards: Path, tmp_path: Path) -> None:
    result = loop.train(runs.small(shards, stop="150", schedule=Schedule("constant", warmup="5")), tmp_path / "run")
    rows = [row for row in log.rows(tmp_path / "run") if "loss" in row]
    assert [row["step"] for row in rows] == list(range(150))
    assert rows[0]["words.loss"] == pytest.approx(math.log(400), rel=0.03), "at first it knows nothing"
    assert sum(row["words.loss"] for row in rows[-10:]) / 10 < rows[0]["words.loss"] - 0.6
    assert result.metrics["valid.words"] < rows[0]["words.loss"] - 0.5
    assert (result.steps, result.finished) == (150, True)


def test_what_it_writes_is_a_model(whole: Path) -> None:
    model = unmask.load(whole)
    assert len(model.fill("the [MASK] is here", top=3).masks[0]) == 3
    assert model.next([("the list is here.", "it is long.")])
    theirs = transformers.BertForPreTraining.from_pretrained(whole).eval()
    found = transformers.BertTokenizer.from_pretrained(whole)("the list is here", return_tensors="pt")
    ours = store.load(whole).model
    positions = torch.arange(found["input_ids"].shape[1])
    from unmask.model.layout import Packed

    with torch.no_grad():
        layout = Packed.of([len(positions)])
        rows = ours({"tokens": found["input_ids"][0], "positions": positions, "segments": found["token_type_ids"][0]}, layout)
        assert torch.allclose(ours.read("words", rows, layout), theirs(**found).prediction_logits[0], atol=1e-5)


def test_provenance_says_how_it_was_made(whole: Path, shards: Path) -> None:
    found = json.loads((whole / "provenance.json").read_text())
    assert found["recipe"] == json.loads(json.dumps(runs.small(shards).json()))
    assert found["metrics"]["valid.loss"] > 0
    assert len(found["data"][0]) == 64


def test_the_same_run_twice_is_the_same_to_the_bit(whole: Path, shards: Path, tmp_path: Path) -> None:
    loop.train(runs.small(shards), tmp_path / "again")
    assert same(weights(whole), weights(tmp_path / "again"))
    other = loop.train(runs.small(shards, seed=1), tmp_path / "other")
    assert not same(weights(whole), weights(other.folder))


@pytest.mark.parametrize("halt", [1, 4, 5, 11])
@pytest.mark.parametrize("name", ["adamw", "lamb", "muon"])
def test_stopped_after_a_step_it_ends_the_same(name: str, halt: int, shards: Path, tmp_path: Path) -> None:
    """With dropout, too, and a running mean."""
    run = runs.small(shards, ema=0.5, model=runs.shape(dropout=0.1), layout="padded")
    run = replace(run, optimizer=replace(run.optimizer, name=name))
    loop.train(run, tmp_path / "whole")
    first = loop.train(run, tmp_path / "halves", halt=halt)
    assert (first.steps, first.finished) == (halt, False)
    second = loop.train(run, tmp_path / "halves")
    assert (second.steps, second.finished) == (12, True)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "halves"))
    losses = [[(row["step"], row["loss"]) for row in log.rows(tmp_path / run) if "loss" in row] for run in ("whole", "halves")]
    assert losses[0] == losses[1]


KILLED = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[3])
import runs
from unmask.train import loop
if __name__ == "__main__":
    loop.train(runs.small(Path(sys.argv[1]), stop="40", save="3", evaluate="25%"), Path(sys.argv[2]))
"""


def test_killed_at_any_moment_it_ends_the_same(shards: Path, tmp_path: Path, full: bool) -> None:
    """SIGKILL at random moments, while it saves too; the weights at the end are those of a run that was never killed."""
    (tmp_path / "killed.py").write_text(KILLED)
    here = str(Path(runs.__file__).parent)
    draw = random.Random(0)

    def started(out: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(tmp_path / "killed.py"), str(shards), str(out), here]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    assert started(tmp_path / "whole").wait() == 0
    expected = weights(tmp_path / "whole")
    kills = done = 0
    while kills < (100 if full else 5):
        out = tmp_path / f"killed-{done}"
        running = started(out)
        while running.poll() is None and not (out / "recipe.json").is_file():
            time.sleep(0.01)
        until = time.monotonic() + draw.uniform(0.0, 1.5)
        while running.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        if running.poll() is None:
            running.kill()
            running.wait()
            kills += 1
            continue
        assert running.returncode == 0
        assert same(weights(out), expected)
        done += 1
    out = tmp_path / f"killed-{done}"
    assert started(out).wait() == 0
    assert same(weights(out), expected)


def test_a_signal_asks_it_to_save_and_stop(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED.replace('stop="40"', 'stop="100000"'))
    command = [sys.executable, str(tmp_path / "killed.py"), str(shards), str(tmp_path / "run"), str(Path(runs.__file__).parent)]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(tmp_path.glob("run/checkpoints/step-*")) and running.poll() is None:
        time.sleep(0.02)
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) == 0
    newest = checkpoint.newest(tmp_path / "run")
    assert newest is not None
    state, _ = checkpoint.restore(newest)
    assert state.begin.clock.steps == log.rows(tmp_path / "run")[-1]["step"] + 1, "the last step that was made is saved"


@pytest.mark.parametrize("together", [2, 3, 4])
def test_micro_batches_together_learn_the_same(together: int, shards: Path, tmp_path: Path) -> None:
    run = runs.small(shards)
    run = replace(run, data=replace(run.data, step=((0.0, 4),)), precision="float64")
    loop.train(run, tmp_path / "one")
    loop.train(replace(run, together=together), tmp_path / "many")
    assert far(weights(tmp_path / "one"), weights(tmp_path / "many")) < 1e-6  # the folder is in float32


def test_a_run_goes_on_with_other_parts(shards: Path, tmp_path: Path) -> None:
    run = runs.small(shards, precision="float64")
    loop.train(run, tmp_path / "whole")
    loop.train(run, tmp_path / "run", halt=6)
    loop.train(replace(run, together=2), tmp_path / "run")
    assert far(weights(tmp_path / "whole"), weights(tmp_path / "run")) < 1e-6


def test_a_step_is_the_same_on_several_ranks(shards: Path, tmp_path: Path, whole: Path) -> None:
    """By torchrun, as a person would start them; and one rank goes on from what two began."""
    (tmp_path / "ranks.py").write_text(
        KILLED.replace("loop.train(", "from unmask.train.distribute import group\n    with group('cpu') as g: loop.train(").replace(
            'stop="40", save="3", evaluate="25%"), Path(sys.argv[2])', 'stop="12"), Path(sys.argv[2]), g, halt=int(sys.argv[4])'
        )
    )
    for halt in (7, 100):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command += [str(tmp_path / "ranks.py"), str(shards), str(tmp_path / "run"), str(Path(runs.__file__).parent), str(halt)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
        assert done.returncode == 0, done.stderr
    assert far(weights(whole), weights(tmp_path / "run")) < 1e-4
    losses = [[row["loss"] for row in log.rows(place) if "loss" in row] for place in (whole, tmp_path / "run")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_evaluation_never_moves(shards: Path, tmp_path: Path) -> None:
    ready = Prepared(runs.small(shards), tmp_path, Group())
    first = loop.evaluated(ready)
    assert loop.evaluated(ready) == first
    assert loop.evaluated(Prepared(runs.small(shards, stop="999"), tmp_path, Group())) == first
    assert 0 <= first["words.right"] <= 1
    assert first["loss"] == pytest.approx(first["words"] + first["next"])


def test_a_damaged_newest_checkpoint_is_named_and_passed_over(shards: Path, tmp_path: Path, whole: Path) -> None:
    loop.train(runs.small(shards), tmp_path / "run", halt=9)
    newest = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    assert newest.name == "step-000009"
    data = bytearray((newest / "model.safetensors").read_bytes())
    data[-5] ^= 1
    (newest / "model.safetensors").unlink()  # it is a hard link of the run folder's
    (newest / "model.safetensors").write_bytes(data)
    with pytest.warns(UserWarning, match=r"step-000009 is damaged \(model.safetensors is not what was written\) and is passed over"):
        result = loop.train(runs.small(shards), tmp_path / "run")
    assert result.steps == 12
    assert same(weights(whole), weights(tmp_path / "run"))


def test_a_full_disk_leaves_the_last_good_checkpoint(shards: Path, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = checkpoint.save_file
    calls: list[int] = []

    def full(*given: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            Path(given[1]).write_bytes(b"half")
            raise OSError(28, "No space left on device")
        real(*given)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_file", full)
        with pytest.raises(UserError, match=r"could not be written \(No space left on device\); free some space and run the same command again"):
            loop.train(runs.small(shards), tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000004"]
    assert not list((tmp_path / "run").rglob(".*"))
    loop.train(runs.small(shards), tmp_path / "run")
    assert same(weights(whole), weights(tmp_path / "run"))


def test_a_gradient_that_is_not_finite_is_named_and_changes_nothing(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs.small(shards)
    real, seen = loop.backward, []

    def poisoned(ready: Prepared, step: Any) -> Any:
        losses = real(ready, step)
        if step.number == 5:
            ready.precision.masters["model.encoder.layers.1.feed.up.weight"].grad.mul_(float("nan"))  # type: ignore[union-attr]
            seen.append({name: p.detach().clone() for name, p in ready.precision.masters.items()})
            seen.append(ready)
        return losses

    monkeypatch.setattr(loop, "backward", poisoned)
    with pytest.raises(UserError, match=r"the gradient of step 5 is not finite, first in model.encoder.layers.1.feed.up.weight \(1 of \d+ tensors\)"):
        loop.train(run, tmp_path / "run")
    assert same(seen[0], {name: p.detach() for name, p in seen[1].precision.masters.items()})


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_in_fp16_it_finds_its_scale_and_resumes_with_it(name: str, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a scale that is too large by far: the first steps change nothing and end nothing. Three good ones double it again."""
    monkeypatch.setattr(precision, "SCALE", 2.0**28)
    monkeypatch.setattr(precision, "PATIENCE", 3)
    run = runs.small(shards, precision="fp16", stop="40", save="5", model=runs.shape(dropout=0.1), layout="padded", schedule=Schedule("constant", warmup="0"))
    run = replace(run, optimizer=replace(run.optimizer, name=name))
    loop.train(run, tmp_path / "whole")
    rows = [row for row in log.rows(tmp_path / "whole") if "loss" in row]
    skipped = [row["step"] for row in rows if not math.isfinite(row["norm"])]
    assert skipped[:4] == [0, 1, 2, 3]
    assert 8 < len(rows) - len(skipped) < 40
    assert {row["scale"] for row in rows} >= {2.0**27, 2.0**26, 2.0**25}
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.2
    for halt in (2, 17):
        loop.train(run, tmp_path / f"{halt}", halt=halt)
        loop.train(run, tmp_path / f"{halt}")
        assert same(weights(tmp_path / "whole"), weights(tmp_path / f"{halt}"))
        assert [row.get("scale") for row in log.rows(tmp_path / f"{halt}") if "loss" in row] == [row["scale"] for row in rows]


def test_in_fp16_what_no_scale_mends_ends_it(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps halve a scale of four; the third has none to halve."""
    monkeypatch.setattr(precision, "SCALE", 4.0)
    real = loop.backward

    def poisoned(ready: Prepared, step: Any) -> Any:
        losses = real(ready, step)
        if step.number >= 3:
            ready.precision.masters["model.encoder.layers.1.feed.up.weight"].grad.mul_(float("nan"))  # type: ignore[union-attr]
        return losses

    monkeypatch.setattr(loop, "backward", poisoned)
    with pytest.raises(UserError, match=r"the gradient of step 5 is not finite, first in model.encoder.layers.1.feed.up.weight \(1 of \d+ tensors\)"):
        loop.train(runs.small(shards, precision="fp16"), tmp_path / "run")


def test_stop_by_tokens_epochs_and_time(shards: Path, tmp_path: Path) -> None:
    by_tokens = loop.train(runs.small(shards, stop="4000tok"), tmp_path / "tokens")
    rows = [row for row in log.rows(tmp_path / "tokens") if "loss" in row]
    assert rows[-2]["tokens"] < 4000 <= rows[-1]["tokens"]
    assert by_tokens.finished
    loop.train(runs.small(shards, stop="1ep"), tmp_path / "epochs")
    assert json.loads((tmp_path / "epochs" / "recipe.json").read_text())["stop"] == "1ep"
    start = time.monotonic()
    loop.train(runs.small(shards, stop="3s", evaluate_tokens=0), tmp_path / "time")
    assert 2.5 < time.monotonic() - start < 8
    assert log.rows(tmp_path / "time")[-1]["share"] > 0.9


def test_a_run_by_wall_clock_makes_again_what_it_made(shards: Path, tmp_path: Path) -> None:
    """The time that each step ended is in the log, and counts when the step is made again."""
    run = runs.small(shards, stop="4s", save="2%", evaluate_tokens=0, keep=1000)
    loop.train(run, tmp_path / "run")
    rows = [row for row in log.rows(tmp_path / "run") if "loss" in row]
    early = sorted((tmp_path / "run" / "checkpoints").iterdir())
    kept = early[len(early) // 3]
    state, _ = checkpoint.restore(kept)
    ready = Prepared(run, tmp_path / "run", Group())
    known = {int(row["step"]): row["seconds"] for row in rows}
    feed = ready.feed(loop.Duration.of(run.stop), state.begin, known)
    step = next(iter(feed))
    feed.close()
    assert step.clock.share == pytest.approx(rows[step.number]["share"])


def test_it_stops_when_nothing_gets_better(shards: Path, tmp_path: Path) -> None:
    run = runs.small(shards, patience=2, evaluate="5", stop="1000")
    run = replace(run, optimizer=replace(run.optimizer, lr=1e-12))
    result = loop.train(run, tmp_path / "run")
    assert result.steps <= 40
    assert result.finished, "no signal stopped it: torchrun would start it anew"


def test_the_best_is_kept(shards: Path, tmp_path: Path) -> None:
    """A rate that destroys: the model in the folder is the one before that."""
    run = runs.small(shards, evaluate="4", save="2", stop="16", schedule=Schedule("constant", warmup="0"))
    run = replace(run, optimizer=replace(run.optimizer, lr=1.0, clip=0.0))
    loop.train(run, tmp_path / "run")
    found = [(row["valid.loss"], row["step"]) for row in log.rows(tmp_path / "run") if "valid.loss" in row]
    best = json.loads((tmp_path / "run" / "provenance.json").read_text())["metrics"]["valid.loss"]
    assert best == min(found)[0]
    assert min(found)[1] < 16


@pytest.mark.parametrize("name", ["mlm", "bilm", "rtd"])
def test_what_of_the_gradient_goes_through_is_written_down(name: str, shards: Path, tmp_path: Path) -> None:
    """The first layer's norm by the last one's, of the model and not of what is learned beside it."""
    run = runs.learning(name, shards, stop="1", evaluate_tokens=0)
    loop.train(run, tmp_path / "run")
    ready = Prepared(run, tmp_path, Group())
    feed = ready.feed(Duration.of("1"), Begin(), {})
    loop.backward(ready, next(iter(feed)))
    feed.close()
    found = [[p.grad for p in ready.learner.model.encoder.layers[place].parameters() if p.grad is not None] for place in (0, 1)]
    first, last = (float(torch.cat([grad.flatten() for grad in grads]).norm()) for grads in found)
    (row,) = log.rows(tmp_path / "run")
    assert row["through"] == pytest.approx(first / last, rel=1e-4)


@pytest.mark.parametrize(("name", "best"), [("rtd", 3), ("mlm", 2)])
def test_the_best_is_by_what_it_is_judged_by(name: str, best: int, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ELECTRA by the model that is kept, whatever its generator has learned; others by all of their loss."""
    told = iter([(6.0, 0.30), (2.0, 0.31), (5.0, 0.29), (4.0, 0.32)])

    def evaluated(ready: Prepared) -> dict[str, float]:
        found = dict(zip(("words", "replaced"), next(told), strict=True))
        return {"loss": sum(ready.weights[term] * found[term] for term in ready.terms), **{term: found[term] for term in ready.terms}}

    monkeypatch.setattr(loop, "evaluated", evaluated)
    result = loop.train(runs.learning(name, shards, evaluate="2", stop="8", save="2", keep=9), tmp_path / "run")
    assert same(weights(tmp_path / "run" / "best"), weights(tmp_path / "run" / "checkpoints" / f"step-{2 * best:06d}"))
    assert result.metrics["valid.words"] == 4.0


def test_the_best_is_the_one_that_was_evaluated(shards: Path, tmp_path: Path) -> None:
    """What is saved between two evaluations is a checkpoint, and not the best yet."""
    run = runs.small(shards, evaluate="4", save="2", stop="16")
    loop.train(run, tmp_path / "run", halt=6)
    found = {name: weights(tmp_path / "run" / name) for name in ("best", "checkpoints/step-000004", "checkpoints/step-000006")}
    assert same(found["best"], found["checkpoints/step-000004"])
    assert same(weights(tmp_path / "run"), found["best"])
    assert not same(found["best"], found["checkpoints/step-000006"])


def test_an_epoch_moves_with_every_batch(shards: Path, tmp_path: Path) -> None:
    """These shards are one block, and the rate must fall within it."""
    loop.train(runs.small(shards, stop="1ep", evaluate_tokens=0), tmp_path / "run")
    found = [row["share"] for row in log.rows(tmp_path / "run")]
    assert len(found) > 5
    assert found == sorted(set(found))
    assert found[len(found) // 2] == pytest.approx(0.5, abs=0.1)


def test_no_validation_documents(shards: Path, tmp_path: Path) -> None:
    result = loop.train(runs.small(shards, evaluate_tokens=0), tmp_path / "run")
    assert result.metrics == {}
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_it_learns_in_a_thread_too(shards: Path, tmp_path: Path) -> None:
    """Where no signals may be caught, as in a notebook's."""
    found: list[loop.Result] = []
    thread = threading.Thread(target=lambda: found.append(loop.train(runs.small(shards, stop="3"), tmp_path / "run")))
    thread.start()
    thread.join()
    assert found[0].finished


def other_run(run: Run) -> Run:
    return replace(run, optimizer=replace(run.optimizer, lr=0.5))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (other_run, r"run is the folder of another run \(optimizer.lr differ\); give --out another folder, or resume it with unmask train"),
        (lambda run: replace(run, data=replace(run.data, longest=((0.0, 65),))), r"sequences of 65 tokens are longer than the 64 positions of the model"),
        (lambda run: replace(run, data=replace(run.data, path=("nowhere",))), r"nowhere holds no shards"),
    ],
)
def test_runs_that_cannot_be(change: Any, says: str, shards: Path, tmp_path: Path) -> None:
    run = runs.small(shards, stop="2")
    loop.train(run, tmp_path / "run")
    with pytest.raises(UserError, match=says):
        loop.train(change(run), tmp_path / ("run" if change is other_run else "new"))


def test_a_folder_that_is_something_else(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="mine is there and is no folder of a run; give --out another folder"):
        loop.train(runs.small(shards), tmp_path / "mine")


def test_going_on_from_a_model(whole: Path, shards: Path, tmp_path: Path, minilm: Path) -> None:
    result = loop.train(runs.small(shards, start=str(whole), stop="2"), tmp_path / "more")
    first = next(row for row in log.rows(result.folder) if "loss" in row)
    assert first["words.loss"] < math.log(400) - 0.01, "it knows what the model had learned"
    with pytest.raises(UserError, match=r"reads by another tokenizer than the shards were made with; run unmask prepare with --tokenizer"):
        loop.train(runs.small(shards, start=str(minilm)), tmp_path / "no")
