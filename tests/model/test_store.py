"""Folders as they are found in the wild: each loads and gives the reference's numbers, or is refused in one sentence."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import unmask
from models import THREE, Case, make
from unmask.errors import UserError
from unmask.model import store
from unmask.model.card import Card, Image
from unmask.model.families import families
from unmask.model.layout import Padded

State = dict[str, Tensor]
MASKED = Case("bert", "BertForMaskedLM", ("words",))
PRETRAINED = Case("bert", "BertForPreTraining", ("words", "next"))
CLASSES = Case("bert", "BertForSequenceClassification", ("classify",), THREE)
TAGS = Case("bert", "BertForTokenClassification", ("tag",), THREE)
BARE = Case("bert", "BertModel", ())
PICTURES = Case("vit", "ViTForImageClassification", ("classify",), THREE)
TOKENS = torch.randint(0, 80, (3, 20), generator=torch.Generator().manual_seed(5))


def refused(call: Callable[[], Any], *names: str) -> str:
    """The sentence: one line that names these things."""
    with pytest.raises(UserError) as caught:
        call()
    said = str(caught.value)
    assert "\n" not in said
    for name in names:
        assert name in said, said
    return said


def reconfigure(folder: Path, *gone: str, **new: Any) -> None:
    path = folder / "config.json"
    config = {key: value for key, value in json.loads(path.read_text()).items() if key not in gone} | new
    path.write_text(json.dumps(config))


def rewrite(folder: Path, change: Callable[[State], State]) -> State:
    path = folder / "model.safetensors"
    state = {name: tensor.contiguous() for name, tensor in change(load_file(path)).items()}
    save_file(state, path)
    return state


@torch.inference_mode()
def outputs(folder: Path, tokens: Tensor = TOKENS) -> State:
    """What every head says, and the rows."""
    model = store.load(folder).model
    layout = Padded(*tokens.shape)
    inputs = {"tokens": tokens, "positions": torch.arange(tokens.shape[1]).expand(tokens.shape)}
    rows = model(inputs, layout)
    return {"rows": rows.unflatten(0, tokens.shape) if rows.dim() == 2 else rows} | {head: model.read(head, rows, layout) for head in model.heads}


@torch.inference_mode()
def theirs(reference: Any, tokens: Tensor = TOKENS) -> State:
    out = reference(tokens, output_hidden_states=True)
    found = {"rows": out.hidden_states[-1]}
    names = {"prediction_logits": "words", "seq_relationship_logits": "next"}
    found |= {names[name]: value for name, value in out.items() if name in names}
    if "logits" in out:
        found[{"BertForMaskedLM": "words", "BertForTokenClassification": "tag"}.get(type(reference).__name__, "classify")] = out.logits
    return found


def same(found: State, expected: State, within: float = 1e-5) -> None:
    assert set(found) == set(expected)
    for name in expected:
        assert (found[name] - expected[name]).abs().max() <= within, name


# ---- folders that are not what they seem


def test_no_such_folder(tmp_path: Path) -> None:
    refused(lambda: store.load(tmp_path / "none"), str(tmp_path / "none"), "there is no folder")
    refused(lambda: store.load("./none"), "./none", "hub id")
    refused(lambda: store.load("a/b/c"), "a/b/c")
    refused(lambda: store.load("x" * 5_000 + "/"), "there is no folder")
    refused(lambda: store.load("~nobody-of-that-name/model"), "~nobody-of-that-name")
    refused(lambda: store.load("a\0b"), "there is no folder")


def test_a_folder_that_is_none_of_a_model(tmp_path: Path) -> None:
    refused(lambda: store.load(tmp_path), str(tmp_path), "config.json", "no model folder")
    make(BARE, tmp_path)
    refused(lambda: store.load(tmp_path / "model.safetensors"), "model.safetensors", "one file", "config.json")
    refused(lambda: store.load(tmp_path / "config.json"), "one file")


@pytest.mark.parametrize(
    ("gone", "new", "says"),
    [
        ("hidden_size", {}, "lacks hidden_size"),
        ("vocab_size", {}, "lacks vocab_size"),
        ("", {"num_attention_heads": 5}, "width 48 is not a multiple of 5 heads"),
        ("", {"num_attention_heads": 0}, "num_attention_heads is 0"),
        ("", {"hidden_size": "48"}, "hidden_size is '48'"),
        ("", {"hidden_size": 48.0}, "hidden_size is 48.0"),
        ("", {"num_hidden_layers": True}, "num_hidden_layers is True"),
        ("", {"num_hidden_layers": 10**9}, "1,000,000,000 layers"),
        ("", {"vocab_size": 2**31 - 1, "hidden_size": 2**30, "num_attention_heads": 1}, "config.json"),
        ("", {"vocab_size": 10**30}, "vocab_size"),
        ("", {"hidden_dropout_prob": 3}, "hidden_dropout_prob is 3"),
        ("", {"layer_norm_eps": "small"}, "layer_norm_eps is 'small'"),
        ("", {"layer_norm_eps": float("nan")}, "layer_norm_eps is nan"),
        ("", {"hidden_act": "golu"}, "activation 'golu'"),
        ("", {"hidden_act": {}}, "hidden_act is {}"),
        ("", {"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'"),
        ("", {"model_type": "brt"}, "'brt', did you mean bert or"),
        ("", {"model_type": "gpt2"}, "known: albert, bert,"),
        ("", {"model_type": ["bert"]}, "model_type ['bert']"),
        ("", {"id2label": {"a": "x"}}, "id2label"),
        ("", {"id2label": {"0": "x", "2": "y"}}, "0 to the number of labels"),
        ("", {"id2label": 3}, "id2label"),
    ],
)
def test_configs_that_describe_no_model(tmp_path: Path, gone: str, new: dict[str, Any], says: str) -> None:
    make(MASKED, tmp_path)
    reconfigure(tmp_path, gone, **new)
    refused(lambda: store.load(tmp_path), "config.json", says)


@pytest.mark.parametrize("value", [None, "x", [], {}, -1, 0, 1.5, True, [1, 2], 10**9], ids=str)
def test_no_value_in_a_config_ends_in_a_traceback(tmp_path: Path, value: Any) -> None:
    for case in (MASKED, PICTURES):
        folder = tmp_path / case.family
        make(case, folder)
        before = (folder / "config.json").read_text()
        for field in json.loads(before):
            reconfigure(folder, **{field: value})
            try:
                store.load(folder)
            except UserError as error:
                assert "\n" not in str(error)  # noqa: PT017 (many values are good ones)
            (folder / "config.json").write_text(before)


def test_both_shapes_are_named(tmp_path: Path) -> None:
    make(MASKED, tmp_path)
    reconfigure(tmp_path, hidden_size=64)
    refused(lambda: store.load(tmp_path), "embeddings.word_embeddings.weight", "80 x 48", "80 x 64")
    reconfigure(tmp_path, hidden_size=48)
    rewrite(tmp_path, lambda state: state | {"bert.embeddings.LayerNorm.weight": torch.tensor(1.0)})
    refused(lambda: store.load(tmp_path), "embeddings.LayerNorm.weight", "48", "a single number")
    rewrite(tmp_path, lambda state: state | {"bert.embeddings.LayerNorm.weight": torch.ones(48), "cls.predictions.bias": torch.tensor(0.0)})
    refused(lambda: store.load(tmp_path), "cls.predictions.bias", "80", "a single number")


def test_a_vocabulary_that_does_not_fit(tmp_path: Path) -> None:
    make(BARE, tmp_path)
    (tmp_path / "vocab.txt").write_text((tmp_path / "vocab.txt").read_text() + "".join(f"word{i}\n" for i in range(1_000)))
    refused(lambda: store.load(tmp_path), "1,060", "80", "tokenizer")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_that_are_not_finite_are_named(tmp_path: Path, value: float, dtype: torch.dtype) -> None:
    make(MASKED, tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state["bert.encoder.layer.1.output.dense.weight"][3, 5] = value
    rewrite(tmp_path, lambda _: {name: tensor.to(dtype) for name, tensor in state.items()})
    refused(lambda: store.load(tmp_path), "encoder.layer.1.output.dense.weight", "not finite")


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64])
def test_weights_that_are_no_floats_are_named(tmp_path: Path, dtype: torch.dtype) -> None:
    make(MASKED, tmp_path)
    rewrite(tmp_path, lambda state: state | {"bert.embeddings.LayerNorm.weight": torch.ones(48, dtype=dtype)})
    refused(lambda: store.load(tmp_path), "embeddings.LayerNorm.weight", str(dtype).split(".")[1])


def test_missing_weights_are_named(tmp_path: Path) -> None:
    make(MASKED, tmp_path)
    rewrite(tmp_path, lambda state: {name: tensor for name, tensor in state.items() if "layer.2" not in name})
    refused(lambda: store.load(tmp_path), "encoder.layer.2.attention.self.query.weight", "and 13 more", "not whole")


def test_unknown_weights_are_refused_unless_left(tmp_path: Path) -> None:
    make(MASKED, tmp_path)
    rewrite(tmp_path, lambda state: state | {"bert.adapter.up": torch.ones(2), "bert.adapter.down": torch.ones(2)})
    refused(lambda: store.load(tmp_path), "adapter.down", "adapter.up", "leave=['adapter.down']")
    refused(lambda: store.load(tmp_path, leave=["adapter.down"]), "leave=['adapter.up']")
    assert store.load(tmp_path, leave=["adapter.*"]).model.heads


def test_one_tensor_under_two_spellings(tmp_path: Path) -> None:
    make(MASKED, tmp_path)
    rewrite(tmp_path, lambda state: state | {"bert.embeddings.LayerNorm.gamma": torch.ones(48)})
    refused(lambda: store.load(tmp_path), "embeddings.LayerNorm.weight twice")


def test_words_that_are_not_the_embedding(tmp_path: Path) -> None:
    make(MASKED, tmp_path)
    rewrite(tmp_path, lambda state: state | {"cls.predictions.decoder.weight": torch.ones(80, 48)})
    refused(lambda: store.load(tmp_path), "cls.predictions.decoder.weight", "not the embedding", "tie_word_embeddings")
    rewrite(tmp_path, lambda state: state | {"cls.predictions.decoder.weight": state["bert.embeddings.word_embeddings.weight"].clone()})
    assert store.load(tmp_path).model.heads
    rewrite(tmp_path, lambda state: state | {"cls.predictions.decoder.bias": torch.ones(80)})
    refused(lambda: store.load(tmp_path), "cls.predictions.decoder.bias", "tie_word_embeddings")


# ---- heads


def test_a_head_that_the_folder_lacks(tmp_path: Path) -> None:
    make(BARE, tmp_path)
    model = unmask.load(tmp_path)
    for ask, name in ((model.classify, "classify"), (model.fill, "fill"), (model.tag, "tag")):
        refused(lambda ask=ask: ask("a [MASK]"), name, "no head")  # type: ignore[misc]


def test_a_head_that_config_names_and_the_weights_lack(tmp_path: Path) -> None:
    make(BARE, tmp_path)
    reconfigure(tmp_path, architectures=["BertForSequenceClassification"])
    refused(lambda: store.load(tmp_path), "classify", "classifier.weight", "heads={'classify': number of labels}")
    assert store.load(tmp_path, heads={"classify": 3}).model.config.heads == (("classify", 3),)


def test_a_head_of_unknown_kind_asks_which(tmp_path: Path) -> None:
    make(CLASSES, tmp_path)
    reconfigure(tmp_path, "architectures")
    refused(lambda: store.load(tmp_path), "classifier.bias", "architectures", "BertForSequenceClassification", "BertForTokenClassification")


@pytest.mark.parametrize("heads", [{"clasify": 3}, {"classify": 0}, {"classify": True}, {"classify": "3"}])
def test_heads_that_cannot_be(tmp_path: Path, heads: dict[str, Any]) -> None:
    make(BARE, tmp_path)
    refused(lambda: store.load(tmp_path, heads=heads), "head", next(iter(heads)))


@pytest.mark.parametrize("case", [MASKED, PRETRAINED, BARE, CLASSES, TAGS], ids=lambda case: case.id)
@pytest.mark.parametrize("count", [3, 5])
def test_a_new_head_leaves_the_trunk_alone(tmp_path: Path, case: Case, count: int) -> None:
    """The folder's own head of that kind and count stays; of another kind or count it cannot be meant, and a new one is drawn."""
    make(case, tmp_path)
    own = store.named_tensors(store.load(tmp_path).model)
    one, again = (store.load(tmp_path, heads={"classify": count}, seed=7) for _ in range(2))
    other = store.load(tmp_path, heads={"classify": count}, seed=8)
    found, repeated, different = (dict(loaded.model.named_parameters()) for loaded in (one, again, other))
    assert one.model.config.heads == (("classify", count),)
    assert all(torch.equal(found[name], repeated[name]) for name in found)
    plain = {name.removeprefix("bert."): tensor for name, tensor in own.items()}
    trunk = [name for name in store.named_tensors(one.model) if "classifier" not in name and "pooler" not in name]
    assert len(trunk) == 5 + 16 * 3
    assert all(torch.equal(store.named_tensors(one.model)[name], plain[name.removeprefix("bert.")]) for name in trunk)
    kept = case is CLASSES and count == 3
    assert torch.equal(found["heads.classify.out.weight"], different["heads.classify.out.weight"]) == kept
    assert one.card.labels == (("bad", "fair", "good") if kept else tuple(f"LABEL_{i}" for i in range(count)))
    assert torch.equal(found["pooler.dense.weight"], different["pooler.dense.weight"]) == (case not in (MASKED, TAGS)), "a pooler is drawn only where none is"
    if not kept:
        assert 0.01 < found["heads.classify.out.weight"].std() < 0.03
        assert not found["heads.classify.out.bias"].any()


def test_a_new_head_is_saved_and_loads(tmp_path: Path) -> None:
    make(CLASSES, tmp_path / "old")
    (tmp_path / "old" / "task.json").write_text(json.dumps({"task": "classify", "kind": "many", "thresholds": {"bad": 0.1}}))
    loaded = store.load(tmp_path / "old", heads={"tag": 4})
    assert (loaded.card.task, loaded.card.kind, loaded.card.thresholds) == (None, "one", {})
    store.save(loaded, tmp_path / "new")
    again = store.load(tmp_path / "new")
    assert again.model.config.heads == (("tag", 4),)
    assert again.card == loaded.card
    transformers.BertForTokenClassification.from_pretrained(tmp_path / "new")


def test_heads_may_be_added_to_the_folders_own(tmp_path: Path) -> None:
    make(MASKED, tmp_path)
    own = store.load(tmp_path).model
    both = store.load(tmp_path, heads={"words": 1, "classify": 2}).model
    assert both.config.heads == (("words", 80), ("classify", 2))
    assert torch.equal(both.heads["words"].dense.weight, own.heads["words"].dense.weight)  # type: ignore[union-attr]
    assert both.heads["words"].decoder.weight is both.embed.words.weight  # type: ignore[union-attr]


def test_no_heads_may_be_asked_for(tmp_path: Path) -> None:
    make(PRETRAINED, tmp_path)
    assert not store.load(tmp_path, heads={}).model.heads


def test_a_new_head_on_a_picture_model_with_a_pooler(tmp_path: Path) -> None:
    """As google/vit-base-patch16-224-in21k: transformers' ViT head does not read the pooler, so it stays behind."""
    make(Case("vit", "ViTModel", ()), tmp_path)
    loaded = store.load(tmp_path, heads={"classify": 3})
    assert loaded.model.config.heads == (("classify", 3),)
    store.save(loaded, tmp_path / "new")
    assert store.load(tmp_path / "new").model.heads


# ---- folders that are odd but good


def with_head_prefix(state: State) -> State:
    return {f"module.{name}": tensor for name, tensor in state.items()}


ODD: dict[str, tuple[Case, Callable[[State], State], dict[str, Any]]] = {
    "no prefix": (MASKED, lambda state: {name.removeprefix("bert."): tensor for name, tensor in state.items()}, {}),
    "module.": (PRETRAINED, with_head_prefix, {}),
    "prefix on a bare model": (BARE, lambda state: {f"bert.{name}": tensor for name, tensor in state.items()}, {}),
    "gamma and beta": (
        MASKED,
        lambda state: {n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t for n, t in state.items()},
        {},
    ),
    "position_ids": (MASKED, lambda state: state | {"bert.embeddings.position_ids": torch.arange(64)[None]}, {}),
    "decoder twice": (
        MASKED,
        lambda state: (
            state
            | {
                "cls.predictions.decoder.weight": state["bert.embeddings.word_embeddings.weight"].clone(),
                "cls.predictions.decoder.bias": state["cls.predictions.bias"].clone(),
            }
        ),
        {},
    ),
    "only decoder.bias": (MASKED, lambda state: {n.replace("predictions.bias", "predictions.decoder.bias"): t for n, t in state.items()}, {}),
    "no model_type": (MASKED, dict, {"model_type": None}),
    "no architectures": (MASKED, dict, {"architectures": None}),
    "architectures of others": (MASKED, dict, {"architectures": ["BertForSomethingOfMine"]}),
    "nulls": (MASKED, dict, {"classifier_dropout": None, "hidden_dropout_prob": None, "pad_token_id": None, "layer_norm_eps": None}),
    "says less than it holds": (PRETRAINED, dict, {"architectures": ["BertForMaskedLM"]}),  # as bert-base-uncased
    "num_labels beside id2label": (CLASSES, dict, {"num_labels": 3, "id2label": {"0": "a", "1": "b"}}),
    "id2label beside num_labels": (CLASSES, dict, {"num_labels": 7}),
    "float16": (CLASSES, lambda state: {name: tensor.half() for name, tensor in state.items()}, {"dtype": "float16"}),
    "bfloat16": (TAGS, lambda state: {name: tensor.bfloat16() for name, tensor in state.items()}, {"torch_dtype": "bfloat16"}),
    "float64": (MASKED, lambda state: {name: tensor.double() for name, tensor in state.items()}, {}),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_folders_give_the_reference_s_numbers(tmp_path: Path, name: str) -> None:
    case, change, config = ODD[name]
    reference: Any = make(case, tmp_path)
    state = rewrite(tmp_path, change)
    reconfigure(tmp_path, *(key for key, value in config.items() if value is None and key in ("model_type", "architectures")))
    reconfigure(tmp_path, **{key: value for key, value in config.items() if not (value is None and key in ("model_type", "architectures"))})
    if next(iter(state.values())).dtype in (torch.float16, torch.bfloat16):
        kind = next(iter(state.values())).dtype
        with torch.no_grad():
            for parameter in reference.parameters():
                parameter.copy_(parameter.to(kind).float())
    same(outputs(tmp_path), theirs(reference))


def test_labels_of_two_lengths(tmp_path: Path) -> None:
    make(CLASSES, tmp_path)
    reconfigure(tmp_path, num_labels=3, id2label={"0": "a", "1": "b"})
    assert store.load(tmp_path).card.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    reconfigure(tmp_path, num_labels=9, id2label={"0": "a", "1": "b", "2": "c"})
    assert store.load(tmp_path).card.labels == ("a", "b", "c")
    reconfigure(tmp_path, num_labels=9, id2label={"0": "a", "1": "b"})
    refused(lambda: store.load(tmp_path), "2, 9 labels", "have 3", "id2label")


def test_two_labels_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """ImageNet's classes 134 and 517 are both `crane`."""
    make(CLASSES, tmp_path)
    reconfigure(tmp_path, id2label={"0": "crane", "1": "dog", "2": "crane"})
    assert store.load(tmp_path).card.labels == ("crane", "dog", "crane (2)")
    assert len(unmask.load(tmp_path).classify("abc").scores) == 3


def test_google_s_own_config(tmp_path: Path) -> None:
    """bert_config.json, renamed: neither model_type nor architectures, and no word of ties."""
    reference = make(PRETRAINED, tmp_path)
    names = "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act max_position_embeddings type_vocab_size"
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({name: config[name] for name in names.split()}))
    same(outputs(tmp_path), theirs(reference))


# ---- pictures: timm's names and google-research's


def timm_state(state: State) -> State:
    """transformers' names on disk -> timm's."""
    pairs = [
        ("vit.", ""),
        ("embeddings.patch_embeddings.projection", "patch_embed.proj"),
        ("embeddings.cls_token", "cls_token"),
        ("embeddings.position_embeddings", "pos_embed"),
        ("encoder.layer.", "blocks."),
        ("layernorm_before", "norm1"),
        ("layernorm_after", "norm2"),
        ("attention.output.dense", "attn.proj"),
        ("intermediate.dense", "mlp.fc1"),
        ("output.dense", "mlp.fc2"),
        ("layernorm", "norm"),
        ("classifier", "head"),
        ("pooler.dense", "pre_logits.fc"),
    ]
    found: State = {}
    for name, tensor in state.items():
        for old, new in pairs:
            name = name.replace(old, new)
        found[name] = tensor
    for block in {name.split(".attention.")[0] for name in found if ".attention.attention.query" in name}:
        for last in ("weight", "bias"):
            parts = [found.pop(f"{block}.attention.attention.{part}.{last}") for part in ("query", "key", "value")]
            found[f"{block}.attn.qkv.{last}"] = torch.cat(parts)
    return found


TIMM = {
    "architecture": "vit_tiny_patch16_64",
    "num_classes": 3,
    "num_features": 192,
    "pretrained_cfg": {
        "mean": [0.4, 0.5, 0.6],
        "std": [0.2, 0.3, 0.4],
        "input_size": [3, 64, 64],
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "label_names": ["bad", "fair", "good"],
    },
}
TINY = {**THREE, "hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768, "image_size": 64, "patch_size": 16}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder as timm writes it, and the model it was made from."""
    folder = tmp_path_factory.mktemp("made")
    reference = make(Case("vit", "ViTForImageClassification", ("classify",), TINY | {"layer_norm_eps": 1e-6}), folder)
    (folder / "preprocessor_config.json").unlink()
    rewrite(folder, timm_state)
    return folder, reference


@pytest.fixture
def timm(made: tuple[Path, Any], tmp_path: Path) -> Path:
    shutil.copytree(made[0], tmp_path / "timm")
    (tmp_path / "timm" / "config.json").write_text(json.dumps(TIMM))
    return tmp_path / "timm"


@torch.inference_mode()
def logits(folder: Path, pixels: Tensor) -> Tensor:
    model = store.load(folder).model
    layout = Padded(len(pixels), 1 + model.config.embed.grid[0] * model.config.embed.grid[1])  # type: ignore[union-attr]
    return model.read("classify", model({"pixels": pixels}, layout), layout)


def test_a_folder_of_timm(made: tuple[Path, Any], timm: Path, tmp_path: Path) -> None:
    reference = made[1]
    assert any("attn.qkv" in name for name in load_file(timm / "model.safetensors"))
    pixels = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = reference(pixels).logits
    assert (logits(timm, pixels) - expected).abs().max() <= 3e-5, "twelve layers, logits of 5"
    card = store.load(timm).card
    assert card.labels == ("bad", "fair", "good")
    assert card.image == Image((64, 64), 3, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), resample=3, shorter=71)  # 64 / 0.9 = 71.1
    store.save(store.load(timm), tmp_path / "new")
    again: Any = transformers.ViTForImageClassification.from_pretrained(tmp_path / "new")
    with torch.inference_mode():
        assert torch.equal(again(pixels).logits, expected)
    assert again.config.id2label == THREE["id2label"]
    assert not {"architecture", "pretrained_cfg"} & set(json.loads((tmp_path / "new" / "config.json").read_text()))
    assert store.load(tmp_path / "new").card == card


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"architecture": "vit_tiny_patch16_clip_64"}, "vit_tiny_patch16_clip_64"),
        ({"global_pool": "avg"}, "global_pool"),
        ({"pretrained_cfg": 3}, "pretrained_cfg"),
        ({"pretrained_cfg": {"input_size": [3, 64]}}, "size"),
        ({"pretrained_cfg": {"input_size": "64"}}, "config.json"),
        ({"pretrained_cfg": {"input_size": [3, 64, 64], "interpolation": "bicubicc"}}, "did you mean bicubic"),
        ({"pretrained_cfg": {"input_size": [3, 64, 64], "crop_mode": "border"}}, "'border'"),
        ({"pretrained_cfg": {"input_size": [3, 64, 64], "crop_pct": "all"}}, "crop_pct"),
        ({"pretrained_cfg": {"input_size": [3, 64, 64], "mean": "grey"}}, "mean"),
        ({"pretrained_cfg": {"input_size": [3, 64, 64], "std": [0, 0, 0]}}, "std"),
        ({"pretrained_cfg": {"input_size": [1, 64, 64]}}, "192 x 1 x 16 x 16"),
    ],
)
def test_folders_of_timm_that_are_refused(timm: Path, change: dict[str, Any], says: str) -> None:
    (timm / "config.json").write_text(json.dumps(TIMM | change))
    refused(lambda: store.load(timm), says)


def test_another_library_s_extra_weights_are_named(timm: Path) -> None:
    rewrite(timm, lambda state: state | {"fc_norm.weight": torch.ones(192), "blocks.0.ls1.gamma": torch.ones(192)})
    refused(lambda: store.load(timm), "fc_norm.weight", "ls1.gamma")


D, N, P, F, S = 48, 4, 8, 96, 32  # width, heads, patch, inner, side


def google(draw: np.random.Generator, labels: int = 3, pre_logits: bool = False) -> dict[str, Any]:
    """A file as google-research/vision_transformer saves one: JAX's kernels, two blocks."""

    def some(*shape: int) -> Any:
        return (0.2 * draw.standard_normal(shape)).astype(np.float32)

    found = {
        "cls": some(1, 1, D),
        "embedding/kernel": some(P, P, 3, D),
        "embedding/bias": some(D),
        "Transformer/posembed_input/pos_embedding": some(1, 1 + (S // P) ** 2, D),
        "Transformer/encoder_norm/scale": 1 + some(D),
        "Transformer/encoder_norm/bias": some(D),
        "head/kernel": some(D, labels),
        "head/bias": some(labels),
    }
    for i in range(2):
        block, attention = f"Transformer/encoderblock_{i}", f"Transformer/encoderblock_{i}/MultiHeadDotProductAttention_1"
        for part in ("query", "key", "value"):
            found |= {f"{attention}/{part}/kernel": some(D, N, D // N), f"{attention}/{part}/bias": some(N, D // N)}
        found |= {f"{attention}/out/kernel": some(N, D // N, D), f"{attention}/out/bias": some(D)}
        found |= {f"{block}/MlpBlock_3/Dense_0/kernel": some(D, F), f"{block}/MlpBlock_3/Dense_0/bias": some(F)}
        found |= {f"{block}/MlpBlock_3/Dense_1/kernel": some(F, D), f"{block}/MlpBlock_3/Dense_1/bias": some(D)}
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            found |= {f"{block}/{norm}/scale": 1 + some(D), f"{block}/{norm}/bias": some(D)}
    if pre_logits:
        found |= {"pre_logits/kernel": some(D, D), "pre_logits/bias": some(D)}
    return found


def forward(weights: dict[str, Any], images: Any) -> Any:
    """The published model in numpy, in float64, from its paper's equations: images (B, H, W, C) -> the class token after the last norm."""
    from math import erf

    w = {name: value.astype(np.float64) for name, value in weights.items()}

    def norm(x: Any, name: str) -> Any:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return x * w[f"{name}/scale"] + w[f"{name}/bias"]

    side = S // P
    patches = images.reshape(-1, side, P, side, P, 3)
    x = np.einsum("brpcqk,pqkd->brcd", patches, w["embedding/kernel"]).reshape(len(images), side * side, D) + w["embedding/bias"]
    x = np.concatenate([np.repeat(w["cls"], len(x), 0), x], 1) + w["Transformer/posembed_input/pos_embedding"]
    for i in range(2):
        block = f"Transformer/encoderblock_{i}"
        attention, y = f"{block}/MultiHeadDotProductAttention_1", norm(x, f"{block}/LayerNorm_0")
        q, k, v = (np.einsum("btd,dnh->btnh", y, w[f"{attention}/{part}/kernel"]) + w[f"{attention}/{part}/bias"] for part in ("query", "key", "value"))
        scores = np.einsum("bqnh,bknh->bnqk", q, k) / np.sqrt(D // N)
        chances = np.exp(scores - scores.max(-1, keepdims=True))
        chances /= chances.sum(-1, keepdims=True)
        x = x + np.einsum("bnqk,bknh,nhd->bqd", chances, v, w[f"{attention}/out/kernel"]) + w[f"{attention}/out/bias"]
        y = norm(x, f"{block}/LayerNorm_2") @ w[f"{block}/MlpBlock_3/Dense_0/kernel"] + w[f"{block}/MlpBlock_3/Dense_0/bias"]
        y = 0.5 * y * (1 + np.vectorize(erf)(y / np.sqrt(2)))
        x = x + y @ w[f"{block}/MlpBlock_3/Dense_1/kernel"] + w[f"{block}/MlpBlock_3/Dense_1/bias"]
    return norm(x, "Transformer/encoder_norm")[:, 0]


def test_google_s_npz(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    weights, images = google(draw), draw.uniform(-1, 1, (2, S, S, 3))
    np.savez(tmp_path / "vit.npz", **weights)
    expected = forward(weights, images) @ weights["head/kernel"] + weights["head/bias"]
    found = logits(tmp_path / "vit.npz", torch.from_numpy(images.transpose(0, 3, 1, 2)).float())
    assert np.abs(found.numpy() - expected).max() <= 1e-5
    store.save(store.load(tmp_path / "vit.npz"), tmp_path / "new")
    again: Any = transformers.ViTForImageClassification.from_pretrained(tmp_path / "new")
    with torch.inference_mode():
        assert np.abs(again(torch.from_numpy(images.transpose(0, 3, 1, 2)).float()).logits.numpy() - expected).max() <= 1e-5


def test_google_s_npz_answers_for_a_picture(tmp_path: Path) -> None:
    from PIL import Image as Pillow

    draw = np.random.default_rng(0)
    weights, image = google(draw), draw.integers(0, 256, (S, S, 3)).astype(np.uint8)
    np.savez(tmp_path / "vit.npz", **weights)
    Pillow.fromarray(image).save(tmp_path / "picture.png")
    expected = (forward(weights, image[None] / 127.5 - 1.0) @ weights["head/kernel"] + weights["head/bias"])[0]
    model = unmask.load(tmp_path / "vit.npz")
    assert model.card.image == Image((S, S), resample=2, shorter=0), "both sides resized, as google-research's input pipeline does"
    answer = model.classify(tmp_path / "picture.png")
    chances = np.exp(expected - expected.max()) / np.exp(expected - expected.max()).sum()
    assert answer.label == f"LABEL_{expected.argmax()}"
    assert np.abs(np.array([answer.scores[f"LABEL_{i}"] for i in range(3)]) - chances).max() <= 1e-5


def test_pre_logits_are_the_pooler(tmp_path: Path) -> None:
    """Files of ImageNet-21k: transformers' conversion made pre_logits its pooler and left the head behind, which is zero in the published ones."""
    draw = np.random.default_rng(0)
    weights, images = google(draw, pre_logits=True), draw.uniform(-1, 1, (2, S, S, 3))
    np.savez(tmp_path / "full.npz", **weights)
    refused(lambda: store.load(tmp_path / "full.npz"), "pre_logits", "head")
    weights |= {"head/kernel": np.zeros((D, 9), np.float32), "head/bias": np.zeros(9, np.float32)}
    np.savez(tmp_path / "vit.npz", **weights)
    loaded = store.load(tmp_path / "vit.npz")
    assert not loaded.model.heads
    layout = Padded(2, 1 + (S // P) ** 2)
    with torch.inference_mode():
        rows = loaded.model({"pixels": torch.from_numpy(images.transpose(0, 3, 1, 2)).float()}, layout)
        found = loaded.model.pooler(rows, layout)  # type: ignore[misc]
    expected = np.tanh(forward(weights, images) @ weights["pre_logits/kernel"] + weights["pre_logits/bias"])
    assert np.abs(found.numpy() - expected).max() <= 1e-5
    store.save(loaded, tmp_path / "new")
    _, report = transformers.ViTModel.from_pretrained(tmp_path / "new", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]


@pytest.mark.parametrize("gone", ["embedding/kernel", "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel", "cls"])
def test_an_npz_that_is_not_whole(tmp_path: Path, gone: str) -> None:
    weights = google(np.random.default_rng(0))
    np.savez(tmp_path / "vit.npz", **{name: value for name, value in weights.items() if name != gone})
    refused(lambda: store.load(tmp_path / "vit.npz"), gone if "/" in gone else "cls_token")
    np.savez(tmp_path / "vit.npz", **(weights | {gone: np.zeros(3, np.float32)}))
    refused(lambda: store.load(tmp_path / "vit.npz"))


def test_an_npz_of_something_else(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.zeros(3))
    refused(lambda: store.load(tmp_path / "x.npz"), "x.npz", "no shape")


# ---- the card


FULL = Card(
    task="classify",
    labels=("bad", "fair", "good"),
    kind="many",
    thresholds={"bad": 0.25, "good": 1.0},
    length=50,
    windows=7,
    pooling=("cls", "max"),
    normalise=True,
    include_prompt=False,
    prompts={"query": "ask: ", "한국어": "질문: "},
    prompt="query",
    lowercase=True,
)


def test_a_card_goes_there_and_back(tmp_path: Path) -> None:
    make(CLASSES, tmp_path / "old")
    loaded = store.load(tmp_path / "old")
    loaded.card = FULL
    store.save(loaded, tmp_path / "new")
    assert store.load(tmp_path / "new").card == FULL
    (tmp_path / "new" / "task.json").unlink()  # what other libraries' files say alone
    assert asdict(store.load(tmp_path / "new").card) == asdict(FULL) | {"task": None, "thresholds": {}, "windows": 128}


@pytest.mark.parametrize("resized", [{"shorter": 50}, {"both": (50, 30)}, {}], ids=str)
def test_the_card_of_pictures_goes_there_and_back(tmp_path: Path, resized: dict[str, Any]) -> None:
    make(PICTURES, tmp_path / "old")
    loaded = store.load(tmp_path / "old")
    image = Image((48, 24), 3, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), resample=1, **resized)
    loaded.card = Card(task="classify", labels=("bad", "fair", "good"), image=image)
    store.save(loaded, tmp_path / "new")
    assert store.load(tmp_path / "new").card == loaded.card
    (tmp_path / "new" / "task.json").unlink()
    assert store.load(tmp_path / "new").card.image == image


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"lenght": 3}, "'lenght' that is not known, did you mean length"),
        ({"image": {"sise": 3}}, "'sise' that is not known, did you mean size"),
        ({"length": "50"}, 'length is "50"; it should be a whole number, or null'),
        ({"length": 5.5}, "length is 5.5"),
        ({"length": True}, "length is true"),
        ({"length": 0}, "length of 0"),
        ({"labels": "bad"}, 'labels is "bad"; it should be a list'),
        ({"labels": ["bad", 3, "good"]}, "labels"),
        ({"labels": None}, "labels is null"),
        ({"thresholds": [1]}, "thresholds"),
        ({"thresholds": {"bad": "half"}}, "it should be an object (a number each)"),
        ({"normalise": 1}, "normalise is 1; it should be true or false"),
        ({"pooling": ["meen"]}, "pooling meen is not known; known: cls, mean"),
        ({"kind": "several"}, "kind 'several'"),
        ({"windows": -1}, "overlap by -1"),
        ({"prompts": {"q": 3}}, "prompts"),
        ({"task": 3}, "task is 3; it should be a text, or null"),
        ({"image": [3]}, "image is [3]; it should be an object"),
        ({"image": {"size": [1, 2, 3]}}, "a list of 2 (a whole number each)"),
        ({"image": {"mean": [0.5]}}, "1 and 3 channels"),
        ({"image": {"std": [0.5, 0, 0.5]}}, "above 0"),
        ({"image": {"resample": 9}}, "resample 9"),
        ({"labels": ["a", "b"]}, "2 labels"),
    ],
)
def test_task_json_is_read_strictly(tmp_path: Path, found: dict[str, Any], says: str) -> None:
    make(CLASSES, tmp_path)
    (tmp_path / "task.json").write_text(json.dumps(found))
    refused(lambda: store.load(tmp_path), says)


@pytest.mark.parametrize(
    ("modules", "says"),
    [
        ([{"type": "sentence_transformers.models.Pooling", "path": "../.."}], "'../..'"),
        ([{"type": "sentence_transformers.models.Pooling", "path": "/etc"}], "'/etc'"),
        ([{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}], "a Dense module"),
        ([{"type": "os.system", "path": ""}], "a system module"),
        ([{"type": "sentence_transformers.models.Pooling", "path": "9_Pooling"}], "9_Pooling/config.json cannot be read"),
        ({"0": {}}, "JSON list"),
        ([3], "JSON list"),
    ],
)
def test_modules_that_are_refused(tmp_path: Path, modules: Any, says: str) -> None:
    make(BARE, tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    refused(lambda: store.load(tmp_path), says)


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "meen"}, "pooling meen"),
        ("1_Pooling/config.json", {"pooling_mode": {"a": 1}}, "pooling"),
        ("1_Pooling/config.json", {"include_prompt": "yes"}, "include_prompt"),
        ("sentence_bert_config.json", {"max_seq_length": "long"}, "sentence_bert_config.json says length"),
        ("config_sentence_transformers.json", {"prompts": ["x"]}, "prompts"),
        ("config_sentence_transformers.json", {"default_prompt_name": 3}, "prompt is 3"),
    ],
)
def test_files_of_sentence_transformers_are_read_strictly(tmp_path: Path, file: str, content: Any, says: str) -> None:
    make(BARE, tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]))
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text("{}")
    assert store.load(tmp_path).card.pooling == ("mean",)
    (tmp_path / file).write_text(json.dumps(content))
    refused(lambda: store.load(tmp_path), says)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"size": "big"}, 'size is "big"'),
        ({"size": {"longest_edge": 32}}, "size"),
        ({"size": [32]}, "size"),
        ({"size": 30}, "30 x 30, which patches of 8 do not divide"),
        ({"size": 0}, "0 x 0"),
        ({"image_mean": [0.5], "image_std": [0.5]}, "1 channels"),
        ({"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5]}, "3 and 1 channels"),
        ({"do_resize": False}, "do_resize"),
        ({"rescale_factor": 0.5}, "rescale_factor is 0.5"),
        ({"resample": "bicubic"}, "resample"),
        ({"size": {"height": 40, "width": 0}, "do_center_crop": True, "crop_size": 32}, "cannot be resized to 40 x 0"),
        ({"image_processor_type": "ConvNextImageProcessor", "size": 32, "crop_pct": 2}, "crop_pct is 2"),
    ],
)
def test_image_processors_that_are_refused(tmp_path: Path, settings: dict[str, Any], says: str) -> None:
    make(PICTURES, tmp_path)
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    refused(lambda: store.load(tmp_path), says)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"size": 32}, Image((32, 32))),
        ({"size": [16, 32]}, Image((16, 32))),
        ({"size": {"height": 16, "width": 32}}, Image((16, 32))),
        ({"size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": {"height": 32, "width": 24}}, Image((32, 24), shorter=40)),
        ({"size": {"shortest_edge": 32}}, Image((32, 32), shorter=32)),
        (
            {"size": 40, "do_center_crop": True, "crop_size": 32, "image_processor_type": None, "feature_extractor_type": "DeiTFeatureExtractor"},
            Image((32, 32), resample=3, both=(40, 40)),
        ),
        ({"size": 32, "do_center_crop": True, "crop_size": 32}, Image((32, 32))),
        (
            {"size": 32, "crop_pct": 0.875, "image_processor_type": None, "feature_extractor_type": "ConvNextFeatureExtractor"},
            Image((32, 32), resample=3, shorter=36),
        ),
        ({"size": {"shortest_edge": 384}, "image_processor_type": "ConvNextImageProcessor"}, Image((384, 384), resample=3)),
        ({"do_normalize": False}, Image((32, 32), mean=(0.0,) * 3, std=(1.0,) * 3)),
        ({"resample": 3, "image_mean": [0.1, 0.2, 0.3]}, Image((32, 32), resample=3, mean=(0.1, 0.2, 0.3))),
    ],
)
def test_image_processors_of_every_age(tmp_path: Path, settings: dict[str, Any], expected: Image) -> None:
    make(PICTURES, tmp_path)
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    assert store.load(tmp_path).card.image == expected


# ---- the hub


def hub(code: str, **settings: str) -> tuple[int, str]:
    """Python in another process, as a user without a network has it."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    ended = subprocess.run([sys.executable, "-c", code], env=clean | settings, capture_output=True, text=True, timeout=20)
    return ended.returncode, (ended.stderr or ended.stdout).strip().splitlines()[-1]


@pytest.mark.parametrize("settings", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}], ids=["offline", "refused"])
def test_a_hub_id_without_a_network(tmp_path: Path, settings: dict[str, str]) -> None:
    code, last = hub("from unmask.model import store; store.load('owner/name')", HF_HOME=str(tmp_path), **settings)
    assert code == 1
    assert last.startswith("unmask.errors.UserError: there is no folder owner/name, and the hub could not be reached")
    assert "connect to the network" in last


def test_a_model_in_the_hub_s_cache_needs_no_network(tmp_path: Path) -> None:
    make(BARE, tmp_path / "made")
    cache, commit = tmp_path / "hub" / "models--owner--name", "0" * 40
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text(commit)
    (cache / "blobs").mkdir()
    (cache / "snapshots" / commit).mkdir(parents=True)
    for i, path in enumerate((tmp_path / "made").iterdir()):
        shutil.copy(path, cache / "blobs" / str(i))
        (cache / "snapshots" / commit / path.name).symlink_to(f"../../blobs/{i}")
    code = "from unmask.model import store; print(store.load('owner/name').model.config.encoder.width)"
    assert hub(code, HF_HOME=str(tmp_path), HF_ENDPOINT="http://127.0.0.1:9") == (0, "48")


# ---- what a folder cannot hold, or no longer says


def test_two_heads_of_one_name_are_refused_before_anybody_trains(tmp_path: Path) -> None:
    make(MASKED, tmp_path)
    refused(lambda: store.load(tmp_path, heads={"classify": 2, "tag": 3}), "classify", "tag", "ask for one")
    assert store.load(tmp_path, heads={"tag": 3, "spans": 2}).model.config.heads == (("tag", 3), ("spans", 2))


def test_half_precision_is_not_saved_as_float32(tmp_path: Path) -> None:
    make(MASKED, tmp_path)
    loaded = store.load(tmp_path)
    loaded.model.encoder.bfloat16()
    refused(lambda: store.save(loaded, tmp_path / "out"), "bf16", "precision='float32'")
    assert not (tmp_path / "out").exists()


def test_what_is_no_longer_so_is_not_written_again(tmp_path: Path) -> None:
    make(CLASSES, tmp_path)
    reconfigure(tmp_path, torch_dtype="float16", auto_map={"AutoModel": "evil.Model"}, quantization_config={"bits": 4}, kept="by us")
    store.save(store.load(tmp_path, heads={"words": 80}), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert not {"torch_dtype", "auto_map", "quantization_config", "id2label", "label2id", "problem_type"} & set(config)
    assert config["dtype"] == "float32"
    assert config["kept"] == "by us"


def test_a_pooler_left_over_from_the_trunk_does_no_harm(tmp_path: Path) -> None:
    """A ViT classifier reads the class token as it is; files made from a whole ViTModel carry its pooler all the same."""
    make(Case("vit", "ViTForImageClassification", ("classify",), THREE), tmp_path)
    rewrite(tmp_path, lambda state: state | {"vit.pooler.dense.weight": torch.ones(48, 48), "vit.pooler.dense.bias": torch.ones(48)})
    assert tuple(store.load(tmp_path).model.heads) == ("classify",)


def pairs_of_heads() -> list[tuple[str, str, str]]:
    theirs = {kind.write(next(iter(kind.shapes.values())))["model_type"]: kind for kind in families()}
    return [(name, *pair) for name, kind in theirs.items() if not name.startswith("unmask-") for pair in itertools.combinations(kind.heads, 2)]


@pytest.mark.parametrize(("family", "one", "other"), pairs_of_heads(), ids=lambda name: name)
def test_what_can_be_loaded_can_be_saved_and_loaded(family: str, one: str, other: str, tmp_path: Path) -> None:
    """Any two heads, or a sentence before anybody trains them."""
    name = {"bert": "BertModel", "electra": "ElectraModel", "albert": "AlbertModel", "distilbert": "DistilBertModel", "modernbert": "ModernBertModel"}
    make(Case(family, name.get(family, "RobertaModel"), ()), tmp_path / "in")
    try:
        loaded = store.load(tmp_path / "in", heads={head: store.FIXED.get(head, 3) for head in (one, other)})
    except UserError as error:
        assert "have one name in files" in str(error)  # noqa: PT017 (either way is right)
        return
    store.save(loaded, tmp_path / "out")
    assert {name: len(head.state_dict()) for name, head in store.load(tmp_path / "out").model.heads.items()} == {
        name: len(head.state_dict()) for name, head in loaded.model.heads.items()
    }


@pytest.mark.parametrize(("head", "count"), [("next", 3), ("spans", 5), ("choice", 2)])
def test_heads_of_one_size_only(head: str, count: int, tmp_path: Path) -> None:
    make(BARE, tmp_path)
    refused(lambda: store.load(tmp_path, heads={head: count}), head, f"not {count}", "ask for heads=")


BARES = [("bert", "BertModel"), ("roberta", "RobertaModel"), ("roberta", "XLMRobertaModel"), ("resnet", "ResNetModel")]


@pytest.mark.parametrize(("family", "architecture"), BARES)
def test_a_bare_trunk_that_says_neither_its_type_nor_its_class(family: str, architecture: str, tmp_path: Path) -> None:
    make(Case(family, architecture, ()), tmp_path)
    reconfigure(tmp_path, "model_type", "architectures")
    assert store.load(tmp_path).model.config.family == family
    if architecture == "RobertaModel":
        reconfigure(tmp_path, "pad_token_id")
        assert store.load(tmp_path).model.config.family == family, "two positions more than a round number"


def test_a_trunk_of_no_known_kind_names_the_remedy(tmp_path: Path) -> None:
    make(PICTURES, tmp_path)
    reconfigure(tmp_path, "model_type", "architectures")
    refused(lambda: store.load(tmp_path), "no model_type", "add the model_type")


def test_a_template_of_more_segments_than_the_model_has(minilm: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(minilm, tmp_path / "in")
    whole = json.loads((folder / "tokenizer.json").read_text())
    whole["post_processor"]["single"][0]["SpecialToken"]["type_id"] = 3
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    refused(lambda: store.load(folder), "tells 4 segments apart, its embedding 2")


def test_a_host_that_never_answers_is_not_waited_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as host:  # what connects waits in its queue
        code = "from unmask.model import hub; hub.PATIENCE = 1; hub.locate('owner/name')"
        code, last = hub(code, HF_HOME=str(tmp_path), HF_ENDPOINT=f"http://127.0.0.1:{host.getsockname()[1]}")
    assert code == 1
    assert last.startswith("unmask.errors.UserError: there is no folder owner/name, and the hub could not be reached")


def test_a_host_is_waited_for_some_seconds_and_the_client_is_left_as_it_was() -> None:
    from huggingface_hub import get_session

    from unmask.model import hub

    assert 5 <= hub.PATIENCE <= 20
    before = list(get_session().event_hooks["request"])
    with hub._patient():
        assert len(get_session().event_hooks["request"]) == len(before) + 1
    assert get_session().event_hooks["request"] == before


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_old_folders_of_the_hub_keep_their_weights_in_a_folder(weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What sentence-transformers wrote until 2021: 0_Transformer."""
    import huggingface_hub

    from unmask.model.hub import locate

    files, asked = ["modules.json", "0_Transformer/config.json", f"0_Transformer/{weights}", "0_Transformer/vocab.txt", "1_Pooling/config.json"], []

    def download(name: str, *, allow_patterns: list[str], **_: Any) -> str:
        found = list(huggingface_hub.utils.filter_repo_objects(files, allow_patterns=allow_patterns))
        asked.append(found)
        for one in found:
            (tmp_path / one).parent.mkdir(exist_ok=True)
            (tmp_path / one).touch()
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert (locate("owner/name") / "0_Transformer" / weights).is_file()
    assert len(asked) == (1 if weights == "model.safetensors" else 2)
