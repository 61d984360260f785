"""BERT learns here as in transformers: the same data, masks, initial weights and rates give the same losses, step by step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

import runs
from unmask.config import Duration
from unmask.data.batch import Batch
from unmask.model import store
from unmask.train import loop
from unmask.train.distribute import Group
from unmask.train.feed import Begin, padded
from unmask.train.prepared import Prepared
from unmask.train.run import Run


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.made(tmp_path_factory.mktemp("corpus"))


def theirs(batch: Batch, longest: int) -> dict[str, torch.Tensor]:
    """What BertForPreTraining takes: rows of one length, -100 where nothing is asked."""
    labels = torch.full((len(batch.inputs["tokens"]),), -100)
    real = batch.targets["words.labels"] != -100
    labels[batch.targets["words.rows"][real]] = batch.targets["words.labels"][real]
    one = padded(replace(batch, inputs={**batch.inputs, "labels": labels, "mask": torch.ones_like(labels)}), longest)
    return {
        "input_ids": one.inputs["tokens"],
        "token_type_ids": one.inputs["segments"],
        "attention_mask": one.inputs["mask"],
        "labels": one.inputs["labels"].masked_fill(one.inputs["mask"] == 0, -100),
        "next_sentence_label": batch.targets["next.labels"],
    }


def curves(run: Run, place: Path, dtype: torch.dtype, steps: int) -> tuple[list[float], list[float]]:
    """Ours and theirs."""
    ready = Prepared(run, place, Group())
    store.save(ready.folder({}), place / "start")
    model = transformers.BertForPreTraining.from_pretrained(place / "start", attn_implementation="sdpa").to(dtype).train()
    decays = [
        {"params": [p for p in model.parameters() if (p.ndim > 1) is matrix], "weight_decay": run.optimizer.weight_decay * matrix} for matrix in (True, False)
    ]
    optimizer = torch.optim.AdamW(decays, lr=run.optimizer.lr, betas=run.optimizer.betas, eps=run.optimizer.epsilon)
    feed = ready.feed(Duration.of(run.stop), Begin(), {})
    found: tuple[list[float], list[float]] = ([], [])
    for step in feed:
        loss = model(**theirs(step.parts[0][1], 48)).loss
        found[1].append(float(loss.detach()))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), run.optimizer.clip)
        for group in optimizer.param_groups:
            group["lr"] = run.optimizer.lr * run.schedule.factor(step.clock)
        optimizer.step()
        optimizer.zero_grad()
        _, _, losses = loop._step(ready, step)
        found[0].append(float(losses["words"] + losses["next"]))
        if len(found[0]) == steps:
            break
    feed.close()
    return found


@pytest.mark.parametrize(("precision", "dtype", "most"), [("float64", torch.float64, 1e-6), ("float32", torch.float32, 5e-3)])
def test_the_loss_curve_lies_on_transformers(precision: str, dtype: torch.dtype, most: float, shards: Path, tmp_path: Path, full: bool) -> None:
    steps = 200 if full else 40
    run = runs.small(shards, stop=str(steps), precision=precision)
    run = replace(run, data=replace(run.data, step=((0.0, 1),)))
    ours, peers = curves(run, tmp_path, dtype, steps)
    assert len(ours) == steps
    assert ours[-1] < ours[0] - 0.3, "it learns, so that there is something to compare"
    assert max(abs(one - other) for one, other in zip(ours, peers, strict=True)) < most


def test_accumulation_does_not_change_the_loss(shards: Path, tmp_path: Path) -> None:
    """transformers' own loop multiplies BERT's loss by the number of parts; ours divides by the labels of all of them."""
    run = runs.small(shards, stop="1", precision="float64")
    found = []
    for together in (1, 8):
        ready = Prepared(replace(run, data=replace(run.data, step=((0.0, 8),)), together=together), tmp_path, Group())
        feed = ready.feed(Duration.of("1"), Begin(), {})
        losses = loop.backward(ready, next(iter(feed)))
        feed.close()
        found.append(({name: float(value) for name, value in losses.items()}, [p.grad.clone() for p in ready.precision.masters.values() if p.grad is not None]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
    assert all(float((one - other).norm()) <= 1e-9 * max(float(one.norm()), 1e-6) for one, other in zip(found[0][1], found[1][1], strict=True))
