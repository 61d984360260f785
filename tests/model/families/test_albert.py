"""ALBERT: layers that share their weights, in one group or several."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from models import Case, make
from unmask.errors import UserError
from unmask.model import store
from unmask.model.layout import Padded


def test_shared_weights_are_saved_once(tmp_path: Path) -> None:
    make(Case("albert", "AlbertModel", (), {"num_hidden_layers": 6}), tmp_path / "old")
    loaded = store.load(tmp_path / "old")
    assert len(loaded.model.encoder.layers) == 1
    store.save(loaded, tmp_path / "new")
    old, new = (set(load_file(tmp_path / name / "model.safetensors")) for name in ("old", "new"))
    assert old == new


def test_a_layer_used_six_times_learns_from_all_of_them(tmp_path: Path) -> None:
    make(Case("albert", "AlbertModel", (), {"num_hidden_layers": 6}), tmp_path)
    model = store.load(tmp_path).model.double()
    inputs = {"tokens": torch.randint(5, 80, (1, 7)), "positions": torch.arange(7)[None]}
    states: list[torch.Tensor] = []
    for state in model.encoder.states(model.enter(inputs, Padded(1, 7)), None, Padded(1, 7)):
        states.append(state.detach().requires_grad_())
    weight, layer = model.encoder.layers[0].feed.up.weight, model.encoder.layers[0]
    model(inputs, Padded(1, 7)).sum().backward()
    whole, weight.grad = weight.grad.clone(), None
    onward = torch.ones_like(states[-1])
    for state in reversed(states[:-1]):
        layer(state, Padded(1, 7), (-1, -1), None).backward(onward)
        onward = state.grad  # type: ignore[assignment]
    assert (weight.grad - whole).norm() < 1e-9 * whole.norm()


def test_groups_of_several_layers_are_refused(tmp_path: Path) -> None:
    make(Case("albert", "AlbertModel", ()), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"inner_group_num": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="inner_group_num is 2; one layer a group"):
        store.load(tmp_path)
