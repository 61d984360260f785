"""DeiT: with and without a teacher, transformers' folders and timm's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models import THREE, Case, make
from unmask.model import families, store
from unmask.model.card import Image
from unmask.model.layout import Padded

TAUGHT = Case("deit", "DeiTForImageClassificationWithTeacher", ("classify",), THREE)


def logits(folder: Path) -> Tensor:
    model = store.load(folder).model
    size = model.config.embed.size  # type: ignore[union-attr]
    layout = Padded(2, model.config.embed.tokens(size))  # type: ignore[union-attr]
    with torch.inference_mode():
        return model.read("classify", model({"pixels": torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))}, layout), layout)


def test_a_new_head_for_a_taught_one_has_both_of_its_halves(tmp_path: Path) -> None:
    make(TAUGHT, tmp_path / "old")
    loaded = store.load(tmp_path / "old", heads={"classify": 7})
    store.save(loaded, tmp_path / "new")
    state = load_file(tmp_path / "new" / "model.safetensors")
    assert state["cls_classifier.weight"].shape == state["distillation_classifier.weight"].shape == (7, 48)
    assert json.loads((tmp_path / "new" / "config.json").read_text())["architectures"] == ["DeiTForImageClassificationWithTeacher"]
    assert logits(tmp_path / "new").shape == (2, 7)


@pytest.mark.parametrize(("name", "family", "extra"), [("deit_tiny_distilled_patch16_32", "deit", 2), ("deit_tiny_patch16_32", "vit", 1)])
def test_timm_s_folders(name: str, family: str, extra: int, tmp_path: Path) -> None:
    """One trained without a teacher has no second token, and is a ViT."""
    draw = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return 0.05 * torch.randn(*shape, generator=draw)

    width, state = 192, {"cls_token": some(1, 1, 192), "pos_embed": some(1, 4 + extra, 192), "patch_embed.proj.weight": some(192, 3, 16, 16)}
    state["patch_embed.proj.bias"] = some(width)
    for i in range(12):
        for norm in ("norm1", "norm2"):
            state |= {f"blocks.{i}.{norm}.weight": 1 + some(width), f"blocks.{i}.{norm}.bias": some(width)}
        for part, shape in {"attn.qkv": (576, 192), "attn.proj": (192, 192), "mlp.fc1": (768, 192), "mlp.fc2": (192, 768)}.items():
            state |= {f"blocks.{i}.{part}.weight": some(*shape), f"blocks.{i}.{part}.bias": some(shape[0])}
    state |= {"norm.weight": 1 + some(width), "norm.bias": some(width), "head.weight": some(5, width), "head.bias": some(5)}
    if extra == 2:
        state |= {"dist_token": some(1, 1, 192), "head_dist.weight": some(5, width), "head_dist.bias": some(5)}
    save_file(state, tmp_path / "model.safetensors")
    config = {"architecture": name, "num_classes": 5, "pretrained_cfg": {"input_size": [3, 32, 32], "crop_pct": 1.0}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = store.load(tmp_path)
    assert loaded.model.config.family == family
    assert loaded.card.image == Image((32, 32), shorter=32)
    layout = Padded(1, 4 + extra)
    with torch.inference_mode():
        rows = loaded.model({"pixels": torch.ones(1, 3, 32, 32)}, layout)
        found = loaded.model.read("classify", rows, layout)
    expected = rows[:, 0] @ state["head.weight"].T + state["head.bias"]
    if extra == 2:
        expected = (expected + rows[:, 1] @ state["head_dist.weight"].T + state["head_dist.bias"]) / 2
    assert (found - expected).abs().max() < 1e-5
    store.save(loaded, tmp_path / "saved")
    assert torch.equal(logits(tmp_path / "saved"), logits(tmp_path))


def test_published_ones_are_taught() -> None:
    assert all(config.detail("taught") for config in families.family("deit").shapes.values())
