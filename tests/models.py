"""Small models made with transformers, random weights and all, saved as folders: the reference that ours is held against."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"), ".", ",", "!"]
TEXT = {
    "vocab_size": 80,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}
DISTIL = {"vocab_size": 80, "dim": 48, "n_layers": 3, "n_heads": 4, "hidden_dim": 96, "max_position_embeddings": 64}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
PICTURE = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "image_size": 32,
    "patch_size": 8,
}


STAGES = {"embedding_size": 8, "hidden_sizes": [16, 24, 32], "depths": [2, 1, 2], "layer_type": "basic"}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {  # a family -> its config's class, and the small shape of it
    "bert": ("BertConfig", TEXT),
    "roberta": ("RobertaConfig", {**TEXT, "max_position_embeddings": 66, "type_vocab_size": 1}),
    "electra": ("ElectraConfig", {**TEXT, "embedding_size": 24}),
    "albert": ("AlbertConfig", {**TEXT, "embedding_size": 24}),
    "distilbert": ("DistilBertConfig", DISTIL),
    "modernbert": ("ModernBertConfig", {**TEXT, **SPECIAL, "local_attention": 8}),
    "vit": ("ViTConfig", PICTURE),
    "deit": ("DeiTConfig", PICTURE),
    "resnet": ("ResNetConfig", STAGES),
}
PICTURES = ("vit", "deit", "resnet")
OWN = ("bilm", "gated")  # transformers has no such models, so nothing of theirs is there to hold ours against


@dataclass(frozen=True)
class Case:
    """A family and one of its architectures, with the heads it should come to have here."""

    family: str
    architecture: str
    heads: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        extra = "-".join(f"{k}={v}" for k, v in self.settings.items() if k != "id2label")
        return f"{self.architecture}{'-' + extra if extra else ''}"


THREE = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}
COMMON: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [  # what every family of texts has
    ("Model", (), {}),
    ("ForMaskedLM", ("words",), {}),
    ("ForSequenceClassification", ("classify",), THREE),
    ("ForTokenClassification", ("tag",), THREE),
    ("ForQuestionAnswering", ("spans",), {}),
    ("ForMultipleChoice", ("choice",), {}),
]
CASES = [
    Case("bert", "BertModel", ()),
    Case("bert", "BertForPreTraining", ("words", "next")),
    Case("bert", "BertForMaskedLM", ("words",)),
    Case("bert", "BertForMaskedLM", ("words",), {"tie_word_embeddings": False}),
    Case("bert", "BertForMaskedLM", ("words",), {"hidden_act": "gelu_new", "type_vocab_size": 1}),
    Case("bert", "BertForNextSentencePrediction", ("next",)),
    Case("bert", "BertForSequenceClassification", ("classify",), THREE),
    Case("bert", "BertForTokenClassification", ("tag",), THREE),
    Case("bert", "BertForQuestionAnswering", ("spans",)),
    Case("bert", "BertForMultipleChoice", ("choice",)),
    Case("bert", "BertModel", (), {"is_decoder": True}),
    Case("bert", "BertLMHeadModel", ("words",), {"is_decoder": True}),
    *(Case("roberta", f"Roberta{name}", heads, settings) for name, heads, settings in COMMON),
    *(Case("roberta", f"XLMRoberta{name}", heads, settings) for name, heads, settings in COMMON),
    Case("roberta", "RobertaForMaskedLM", ("words",), {"tie_word_embeddings": False, "type_vocab_size": 2}),
    *(Case("distilbert", f"DistilBert{name}", heads, settings) for name, heads, settings in COMMON),
    Case("distilbert", "DistilBertModel", (), {"sinusoidal_pos_embds": True, "activation": "relu"}),
    *(Case("electra", f"Electra{name}", heads, settings) for name, heads, settings in COMMON),
    Case("electra", "ElectraForPreTraining", ("replaced",)),
    Case("electra", "ElectraForPreTraining", ("replaced",), {"embedding_size": 48, "hidden_act": "gelu_new"}),
    Case("electra", "ElectraForMaskedLM", ("words",), {"tie_word_embeddings": False}),
    *(Case("albert", f"Albert{name}", heads, settings) for name, heads, settings in COMMON),
    Case("albert", "AlbertForPreTraining", ("words", "next")),
    Case("albert", "AlbertModel", (), {"num_hidden_groups": 2, "num_hidden_layers": 5}),
    Case("albert", "AlbertModel", (), {"embedding_size": 48}),
    *(Case("modernbert", f"ModernBert{name}", heads, settings) for name, heads, settings in COMMON),
    Case("modernbert", "ModernBertForSequenceClassification", ("classify",), {**THREE, "classifier_pooling": "mean", "classifier_bias": True}),
    Case("modernbert", "ModernBertModel", (), {"norm_bias": True, "attention_bias": True, "mlp_bias": True}),
    Case("modernbert", "ModernBertModel", (), {"layer_types": ["sliding_attention", "full_attention", "full_attention"]}),
    Case("modernbert", "ModernBertForMaskedLM", ("words",), {"tie_word_embeddings": False}),
    Case("vit", "ViTModel", ()),
    Case("vit", "ViTModel", (), {"qkv_bias": False, "hidden_act": "gelu_new"}),
    Case("vit", "ViTForImageClassification", ("classify",), THREE),
    Case("vit", "ViTForImageClassification", ("classify",), {**THREE, "num_channels": 1, "image_size": [32, 16]}),
    Case("deit", "DeiTModel", ()),
    Case("deit", "DeiTForImageClassification", ("classify",), THREE),
    Case("deit", "DeiTForImageClassificationWithTeacher", ("classify",), {**THREE, "image_size": [32, 16]}),
    Case("resnet", "ResNetModel", ()),
    Case("resnet", "ResNetModel", (), {"layer_type": "bottleneck", "downsample_in_first_stage": True}),
    Case("resnet", "ResNetForImageClassification", ("classify",), THREE),
    Case("resnet", "ResNetForImageClassification", ("classify",), {**THREE, "layer_type": "bottleneck", "downsample_in_bottleneck": True, "num_channels": 1}),
]


def make(case: Case, folder: Path, seed: int = 0, pieces: Sequence[str] = PIECES) -> torch.nn.Module:
    """Random weights far enough from the start (biases too) that a wrong name would show. `pieces` is the vocabulary."""
    name, shape = SHAPES[case.family]
    shape = shape if case.family in PICTURES else shape | {"vocab_size": max(80, len(pieces))}
    config = getattr(transformers, f"XLM{name}" if case.architecture.startswith("XLM") else name)(**shape | case.settings)
    model = getattr(transformers, case.architecture)(config).eval()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=draw)
            tensor.copy_(1 + 0.2 * noise if "norm" in name.lower() and name.endswith("weight") else 0.15 * noise)
        for name, tensor in model.named_buffers():  # a norm's running mean and variance
            if "running" in name:
                tensor.copy_(1 + 0.2 * torch.rand(tensor.shape, generator=draw) if "var" in name else 0.1 * torch.randn(tensor.shape, generator=draw))
    model.save_pretrained(folder)
    if case.family not in PICTURES:
        (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in pieces), encoding="utf-8")
    else:
        side = getattr(config, "image_size", 48)
        size = side if isinstance(side, list | tuple) else [side] * 2
        stats = [0.5] * config.num_channels
        settings = {"image_processor_type": "ViTImageProcessor", "size": {"height": size[0], "width": size[1]}, "image_mean": stats, "image_std": stats}
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return model


def make_varied(architecture: str, folder: Path, pieces: Sequence[str] = PIECES, **settings: Any) -> Any:
    """As `make`, its head's weights and bias set so that answers differ from token to token, or from text to text.

    As they come, a random head says nearly the same of everything, and a decoder that is wrong would go unseen.
    """
    model: Any = make(Case("bert", architecture, (), settings), folder, pieces=pieces)
    head = getattr(model, "qa_outputs", None) or getattr(model, "classifier", None) or model.cls.seq_relationship
    tokens = torch.randint(5, model.config.vocab_size, (64, 24), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        out = model(tokens)
        logits = (torch.stack(out[:2], -1) if hasattr(model, "qa_outputs") else out[0]).flatten(0, -2)
        head.weight.mul_((2.5 / logits.std(0))[:, None])
        head.bias.copy_((head.bias - logits.mean(0)) * 2.5 / logits.std(0))
    model.save_pretrained(folder)
    return model
