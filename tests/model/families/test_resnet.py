"""ResNet: training as well as answering, its running statistics, and the weights of torchvision and timm."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from safetensors.torch import load_file, save_file
from torch import Tensor

import unmask
from models import THREE, Case, make
from unmask.data.images import pixels
from unmask.errors import UserError
from unmask.model import families, store
from unmask.model.card import Image
from unmask.model.layout import Padded
from unmask.model.weights import named_tensors

LAST = Case("resnet", "ResNetForImageClassification", ("classify",), {**THREE, "depths": [2, 1, 2, 1], "hidden_sizes": [16, 24, 32, 40]})
NARROW = Case(LAST.family, LAST.architecture, LAST.heads, {**LAST.settings, "layer_type": "bottleneck", "hidden_sizes": [16, 32, 48, 64]})


@pytest.mark.parametrize("case", [LAST, NARROW], ids=["basic", "bottleneck"])
def test_training_is_theirs(case: Case, tmp_path: Path) -> None:
    """Loss, every gradient, and what the norms remember of the batch."""
    theirs: Any = make(case, tmp_path).double().train()
    ours = store.load(tmp_path).model.double().train()
    given = torch.randn(4, 3, 64, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 2, 1, 1])
    layout = Padded(4, ours.config.embed.tokens((64, 40)))  # type: ignore[union-attr]
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(ours.read("classify", ours({"pixels": given}, layout), layout), labels)
        expected = theirs(given, labels=labels).loss
        assert loss.item() == pytest.approx(expected.item(), rel=1e-10)
        loss.backward()
        expected.backward()
    found = named_tensors(ours)
    for name, tensor in theirs.state_dict().items():
        assert torch.allclose(found[name], tensor, atol=1e-12), name
    gradients = {name: p.grad for name, p in theirs.named_parameters()}
    for ours_name, p in ours.named_parameters():
        (name,) = families.family("resnet").theirs(ours_name)
        expected = gradients[name if name in gradients else f"resnet.{name}"]
        assert (p.grad - expected).norm() <= 1e-9 * expected.norm() + 1e-12, name  # type: ignore[operator]
    counted = [tensor for name, tensor in found.items() if name.endswith("num_batches_tracked")]
    assert counted
    assert all(tensor == 2 for tensor in counted)


@torch.inference_mode()
def test_every_stage_is_theirs(tmp_path: Path) -> None:
    theirs: Any = make(LAST, tmp_path)
    model = unmask.load(tmp_path)
    picture = Pillow.new("RGB", (60, 50), (200, 30, 90))
    assert model.card.image is not None
    given = pixels(picture, model.card.image)[None]
    out = theirs(given, output_hidden_states=True)
    for layer, state in enumerate(out.hidden_states):
        found = model.hidden(picture, layer=layer)
        assert np.abs(found.vectors - state[0].flatten(1).T.numpy()).max() <= 1e-5
        rows, columns = state.shape[2:]
        assert found.pieces == tuple(f"{row},{column}" for row in range(rows) for column in range(columns))
    assert np.abs(model.embed(picture) - out.hidden_states[-1].mean((2, 3))[0].numpy()).max() <= 1e-5
    assert model.classify(picture).scores == pytest.approx(dict(zip(("bad", "fair", "good"), out.logits[0].softmax(-1).tolist(), strict=True)), abs=1e-5)


def to_torchvision(name: str) -> str:
    """transformers' names -> torchvision's, written for this test alone."""
    name = name.removeprefix("resnet.").replace("classifier.1.", "fc.")
    name = re.sub(r"embedder\.embedder\.(c|n)\w+", lambda m: {"c": "conv1", "n": "bn1"}[m[1]], name)
    name = re.sub(r"encoder\.stages\.(\d)\.layers\.", lambda m: f"layer{int(m[1]) + 1}.", name)
    name = re.sub(r"shortcut\.(c|n)[a-z]+", lambda m: {"c": "downsample.0", "n": "downsample.1"}[m[1]], name)
    return re.sub(r"layer\.(\d)\.(c|n)[a-z]+", lambda m: f"{ {'c': 'conv', 'n': 'bn'}[m[2]] }{int(m[1]) + 1}", name)


def rows(folder: Path) -> Tensor:
    model = store.load(folder).model
    given = torch.randn(2, 3, 64, 40, generator=torch.Generator().manual_seed(0))
    layout = Padded(2, model.config.embed.tokens((64, 40)))  # type: ignore[union-attr]
    with torch.inference_mode():
        return model.read("classify", model({"pixels": given}, layout), layout)


@pytest.mark.parametrize("case", [LAST, NARROW], ids=["basic", "bottleneck"])
def test_torchvision_s_weights_alone(case: Case, tmp_path: Path) -> None:
    make(case, tmp_path)
    state = {to_torchvision(name): one for name, one in load_file(tmp_path / "model.safetensors").items()}
    assert {"conv1.weight", "bn1.running_var", "layer2.0.downsample.1.weight", "layer4.0.conv2.weight", "fc.bias"} <= set(state)
    torch.save(state, tmp_path / "resnet-0123abcd.pth")
    assert torch.equal(rows(tmp_path / "resnet-0123abcd.pth"), rows(tmp_path))
    image = store.load(tmp_path / "resnet-0123abcd.pth").card.image
    assert image == Image((224, 224), 3, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), shorter=256)


def test_timm_s_folder(tmp_path: Path) -> None:
    model = families.new(families.shape("resnet.18").with_heads(classify=10), seed=1)
    state = {to_torchvision(name): one.contiguous() for name, one in named_tensors(model).items()}
    save_file(state, tmp_path / "model.safetensors")
    config = {"architecture": "resnet18", "num_classes": 10, "pretrained_cfg": {"input_size": [3, 64, 64], "crop_pct": 0.95, "interpolation": "bicubic"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = store.load(tmp_path)
    assert loaded.card.image == Image((64, 64), resample=3, shorter=67)
    assert all(torch.equal(one, named_tensors(loaded.model)[name]) for name, one in named_tensors(model).items())


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"layer_type": "wide"}, "layer_type is 'wide'"),
        ({"depths": 3}, "depths is 3, it should be a list"),
        ({"depths": [2, "1", 2, 1]}, "depths is '1'"),
        ({"hidden_sizes": [16, 24]}, "4 depths and 2 widths"),
        ({"hidden_act": "mish"}, "activation 'mish'"),
        ({"architecture": "resnet50d"}, "'resnet50d' is not a plain ResNet, did you mean resnet50"),
    ],
)
def test_shapes_that_are_refused(said: dict[str, Any], says: str, tmp_path: Path) -> None:
    make(LAST, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | said
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=re.escape(says)):
        store.load(tmp_path)


def test_a_fresh_one_keeps_its_numbers_in_size() -> None:
    """He's start: what leaves the last stage is neither nothing nor endless, and the norms have seen nothing."""
    model = families.new(families.shape("resnet.50"), seed=0)
    with torch.inference_mode():
        out = model.train()({"pixels": torch.randn(8, 3, 64, 64)}, Padded(8, 4))
    assert 0.1 < out.std() < 10
    fresh = families.new(families.shape("resnet.18"), seed=0)
    assert all(b.eq(0).all() if "mean" in name else b.eq(1).all() for name, b in fresh.named_buffers() if "running" in name)
