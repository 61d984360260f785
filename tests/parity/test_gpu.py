"""The kernels of a GPU against the CPU's. These run only where there is one: `pytest -m gpu`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import runs
import unmask
from conftest import sentences
from unmask.model.layout import ANTICAUSAL, CAUSAL, FULL, Packed, Reach, local
from unmask.train import log, loop
from unmask.train.distribute import Group

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("reach", [FULL, CAUSAL, ANTICAUSAL, local(8)], ids=str)
def test_variable_length_attention(reach: Reach) -> None:
    lengths = (5, 200, 1, 64, 64, 33)
    layout = Packed.of(lengths)
    q, k, v = (torch.randn(sum(lengths), 4, 64, dtype=torch.float64) for _ in range(3))
    expected = layout.attend(q, k, v, reach)
    found = layout.to("cuda").attend(*(t.to("cuda", torch.bfloat16) for t in (q, k, v)), reach=reach).double().cpu()
    assert (found - expected).norm() / expected.norm() < 1e-2


def test_vectors_are_the_cpus(minilm: Path) -> None:
    texts = sentences(300)
    plain = unmask.load(minilm, device="cpu").embed(texts)
    assert np.abs(unmask.load(minilm, device="cuda").embed(texts) - plain).max() < 1e-4
    assert (unmask.load(minilm, device="cuda", precision="auto").embed(texts) * plain).sum(-1).min() > 0.999


def learned(shards: Path, out: Path, device: str, **changes: Any) -> list[float]:
    """The loss of each step; the second half again, from a checkpoint."""
    run = runs.small(shards, stop="20", save="10", **changes)
    loop.train(run, out, Group(device=torch.device(device)), halt=10)
    loop.train(run, out, Group(device=torch.device(device)))
    return [row["loss"] for row in log.rows(out) if "loss" in row]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_numbers_of_two_bytes_learn_as_float32_does(precision: str, tmp_path: Path) -> None:
    """The CPU's. The tiny model of these runs has heads of 16 numbers, which the variable-length kernel takes."""
    shards = runs.made(tmp_path)
    plain = learned(shards, tmp_path / "plain", "cpu", precision="float32")
    found = learned(shards, tmp_path / precision, "cuda", precision=precision)
    assert found == pytest.approx(plain, rel=5e-3)
    assert found[-1] < found[0] - 0.1


@pytest.mark.filterwarnings("ignore")  # torch's compiler has its own
@pytest.mark.parametrize("compiled", ["no", "yes"])
@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_shared_out_among_one(precision: str, compiled: str, tmp_path: Path) -> None:
    """FSDP2 over NCCL with its streams and its copies, as far as one GPU goes."""
    shards = runs.made(tmp_path)
    plain = learned(shards, tmp_path / "plain", "cuda", precision=precision)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        found = learned(shards, tmp_path / "shared", "cuda", precision=precision, shard=True, compile=compiled)
    finally:
        dist.destroy_process_group()
    assert found == pytest.approx(plain, rel=1e-4 if precision == "float32" else 5e-3)
