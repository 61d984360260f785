"""Folders as they are found in the wild, of every family: each kind of oddity leaves the answers what they were."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models import OWN, PICTURES, THREE, Case, make
from unmask.model import families, store
from unmask.model.layout import Padded

HEADED = {
    "albert": ("AlbertForPreTraining", "AlbertForSequenceClassification"),
    "bert": ("BertForPreTraining", "BertForTokenClassification"),
    "deit": ("DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"),
    "distilbert": ("DistilBertForMaskedLM", "DistilBertForQuestionAnswering"),
    "electra": ("ElectraForPreTraining", "ElectraForMaskedLM"),
    "modernbert": ("ModernBertForMaskedLM", "ModernBertForSequenceClassification"),
    "resnet": ("ResNetModel", "ResNetForImageClassification"),
    "roberta": ("RobertaForMaskedLM", "XLMRobertaForSequenceClassification"),
    "vit": ("ViTModel", "ViTForImageClassification"),
}
EVERY = [(family, architecture) for family, both in HEADED.items() for architecture in both]


def test_every_family_is_here() -> None:
    assert set(HEADED) == set(families.names()) - set(OWN)


def outputs(folder: Path) -> dict[str, Tensor]:
    """What the folder's model makes of one input, each of its heads on top."""
    model = store.load(folder).model
    draw = torch.Generator().manual_seed(0)
    if model.config.family in PICTURES:
        size = model.config.embed.size if model.config.family != "resnet" else (64, 40)  # type: ignore[union-attr]
        given = {"pixels": torch.randn(2, 3, *size, generator=draw)}
        layout = Padded(2, model.config.embed.tokens(size))  # type: ignore[union-attr]
    else:
        given = {"tokens": torch.randint(5, 80, (2, 9), generator=draw), "positions": torch.arange(9).expand(2, 9)}
        layout = Padded(2, 9)
    with torch.inference_mode():
        rows = model(given, layout)
        return {"rows": rows} | {head: model.read(head, rows, layout) for head in model.heads}


def reconfigured(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def rewritten(folder: Path, change: Callable[[str, Tensor], tuple[str, Tensor]]) -> None:
    state = load_file(folder / "model.safetensors")
    save_file({name: one.contiguous() for name, one in (change(name, one) for name, one in state.items())}, folder / "model.safetensors")


def no_model_type(folder: Path) -> None:
    reconfigured(folder, lambda config: config.pop("model_type"))


def bare_keys(folder: Path) -> None:
    """A trunk's names without the family's prefix, as files made from the trunk alone have them."""
    prefix = families.recognise(json.loads((folder / "config.json").read_text())).prefix
    rewritten(folder, lambda name, one: (name.removeprefix(prefix), one))


def from_parallel_training(folder: Path) -> None:
    rewritten(folder, lambda name, one: (f"module.{name}", one))


def gamma_and_beta(folder: Path) -> None:
    rewritten(folder, lambda name, one: (re.sub(r"(LayerNorm)\.weight$", r"\1.gamma", re.sub(r"(LayerNorm)\.bias$", r"\1.beta", name)), one))


def with_buffers(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    inside = next((name for name in state if "embeddings." in name), "")
    if "position_embeddings.weight" in " ".join(state):
        prefix = inside.split("embeddings.")[0]
        state[f"{prefix}embeddings.position_ids"] = torch.arange(64)[None]
    save_file(state, folder / "model.safetensors")


def without_counters(folder: Path) -> None:
    """torch kept none before 0.4.1; no other family has any."""
    state = load_file(folder / "model.safetensors")
    save_file({name: one for name, one in state.items() if not name.endswith("num_batches_tracked")}, folder / "model.safetensors")


def an_old_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def saved_on_a_gpu(folder: Path) -> None:
    """A pickle says of every tensor where it lay: on this machine no such place may be."""
    an_old_pickle(folder)
    path = folder / "pytorch_model.bin"
    with zipfile.ZipFile(path) as old:
        entries = {info.filename: old.read(info) for info in old.infolist()}
    inner = next(name for name in entries if name.endswith("data.pkl"))
    moved = entries[inner].replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
    assert moved != entries[inner]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for name, data in (entries | {inner: moved}).items():
            new.writestr(name, data)


def same(one: Tensor, other: Tensor) -> bool:
    """To the last digit but one: a head of one row is summed in an order that hangs on where in memory the file put it."""
    return torch.allclose(one, other, rtol=1e-6, atol=1e-6)


ODD = [no_model_type, bare_keys, from_parallel_training, gamma_and_beta, with_buffers, without_counters, an_old_pickle, saved_on_a_gpu]


@pytest.mark.parametrize("odd", ODD, ids=lambda one: one.__name__)
@pytest.mark.parametrize(("family", "architecture"), EVERY, ids=lambda one: one)
def test_it_answers_as_ever(family: str, architecture: str, odd: Callable[[Path], None], tmp_path: Path) -> None:
    make(Case(family, architecture, (), THREE if "Classification" in architecture else {}), tmp_path)
    before = outputs(tmp_path)
    odd(tmp_path)
    after = outputs(tmp_path)
    assert before.keys() == after.keys()
    for name, one in before.items():
        assert same(one, after[name]), name


@pytest.mark.parametrize(("family", "architecture"), EVERY, ids=lambda one: one)
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(family: str, architecture: str, kind: torch.dtype, tmp_path: Path) -> None:
    """Read as the float32 numbers that the file's halves are."""
    make(Case(family, architecture, ()), tmp_path)
    rewritten(tmp_path, lambda name, one: (name, one.to(kind).to(one.dtype)))
    before = outputs(tmp_path)
    rewritten(tmp_path, lambda name, one: (name, one.to(kind) if one.is_floating_point() else one))
    assert all(same(one, before[name]) for name, one in outputs(tmp_path).items())


@pytest.mark.parametrize(("family", "architecture"), [pair for pair in EVERY if "Classification" in pair[1]], ids=lambda one: one)
def test_a_number_of_labels_beside_names_for_others(family: str, architecture: str, tmp_path: Path) -> None:
    make(Case(family, architecture, (), THREE), tmp_path)
    reconfigured(tmp_path, lambda config: config.update(id2label={"0": "LABEL_0", "1": "LABEL_1"}, num_labels=3))
    assert store.load(tmp_path).card.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
