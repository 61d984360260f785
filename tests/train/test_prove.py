"""The proof holds where it should, and breaks where a run is broken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import runs
from unmask.objectives.mlm import MLM
from unmask.train import loop, prove
from unmask.train.prepared import Prepared
from unmask.train.prove import EXACT, PARTS


@pytest.mark.filterwarnings("ignore")  # torch's compiler has its own
def test_a_sound_run_is_proven(shards: Path, full: bool) -> None:
    """In `make evidence` by 4 ranks, sharded, and compiled as well."""
    found = list(prove.prove(runs.small(shards, shard=full), ranks=(2, 4) if full else (2,), compiled=full))
    assert all(one.good for one in found), [str(one) for one in found]
    ways = [one.way for one in found]
    assert ways[:3] == ["in 4 parts", f"in {PARTS} parts", "by 2 ranks, each with its share of the weights" if full else "by 2 ranks"]
    assert {"padded", "recomputed", "resumed in the middle"} <= set(ways)
    assert all(one.gradient <= EXACT and one.single < 1e-3 for one in found)
    assert any(one.single > 0 for one in found), "float32 is never that exact: it was computed"


def test_a_loop_that_divides_by_its_own_part_is_caught(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake of the peers: each part's mean, as if parts had equally many labels."""
    real = loop.backward

    def wrong(ready: Prepared, step: Any) -> Any:
        if len(step.parts) == 1:
            return real(ready, step)
        from unmask.objectives.base import counts

        for _first, batch in step.parts:
            labels = counts(batch)
            found = ready.learner(batch)
            sum(found[term] / labels[term] / len(step.parts) for term in ready.terms).backward()
            ready.precision.gather()
        return {term: found[term].detach() / labels[term] for term in (*ready.terms, *(f"{term}.right" for term in ready.terms)) if term in labels} | {
            f"{term}.right": found[f"{term}.right"] for term in ready.terms
        }

    monkeypatch.setattr(loop, "backward", wrong)
    first = next(prove.prove(runs.small(shards), ranks=(), compiled=False))
    assert not first.good
    assert first.gradient > 1e-4
    assert str(first).startswith("WRONG: in 4 parts")


def test_a_run_that_resumes_elsewhere_is_caught(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer that forgets."""
    monkeypatch.setattr("unmask.train.optim.Optimizers.restore", lambda self, kept: None)
    last = list(prove.prove(replace(runs.small(shards), objective=(MLM(),)), ranks=(), compiled=False))[-1]
    assert not last.good
    assert str(last).startswith("WRONG: resumed in the middle")
