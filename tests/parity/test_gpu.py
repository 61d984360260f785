"""The kernels of a GPU against the CPU's. These run only where there is one: `pytest -m gpu`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import unmask
from conftest import sentences
from unmask.model.layout import ANTICAUSAL, CAUSAL, FULL, Packed, Reach, local

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
