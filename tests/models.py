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
PICTURE = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "image_size": 32,
    "patch_size": 8,
}


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
    Case("vit", "ViTModel", ()),
    Case("vit", "ViTModel", (), {"qkv_bias": False, "hidden_act": "gelu_new"}),
    Case("vit", "ViTForImageClassification", ("classify",), THREE),
    Case("vit", "ViTForImageClassification", ("classify",), {**THREE, "num_channels": 1, "image_size": [32, 16]}),
]


def make(case: Case, folder: Path, seed: int = 0, pieces: Sequence[str] = PIECES) -> torch.nn.Module:
    """Random weights far enough from the start (biases too) that a wrong name would show. `pieces` is the vocabulary."""
    shape = TEXT | {"vocab_size": max(80, len(pieces))} if case.family == "bert" else PICTURE
    config = getattr(transformers, {"bert": "BertConfig", "vit": "ViTConfig"}[case.family])(**shape | case.settings)
    model = getattr(transformers, case.architecture)(config).eval()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            noise = torch.randn(tensor.shape, generator=draw)
            tensor.copy_(1 + 0.2 * noise if "norm" in name.lower() and name.endswith("weight") else 0.15 * noise)
    model.save_pretrained(folder)
    if case.family == "bert":
        (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in pieces), encoding="utf-8")
    else:
        size = config.image_size if isinstance(config.image_size, list | tuple) else [config.image_size] * 2
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
