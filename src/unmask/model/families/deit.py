"""DeiT (Touvron et al. 2020): a ViT with a second token, which learns from a teacher. Loads transformers' and timm's folders.

A DeiT trained without a teacher is published as a ViT, and has no second token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor, nn

from unmask.model import heads
from unmask.model.embed import ImageConfig
from unmask.model.families.base import Family, Names, architectures, encoder_said, image_of, image_said
from unmask.model.families.vit import ViT, from_timm, image_encoder, timm_shape
from unmask.model.folder import Weights
from unmask.model.layout import Layout
from unmask.model.model import ModelConfig

TAUGHT = "DeiTForImageClassificationWithTeacher"


class Taught(nn.Module):
    """A head over each of the two tokens; the answer is their mean (section 4)."""

    over: heads.Over = "texts"

    def __init__(self, width: int, labels: int) -> None:
        super().__init__()
        self.out = nn.Linear(width, labels)
        self.distilled = nn.Linear(width, labels)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return (self.out(layout.at(x)) + self.distilled(layout.at(x, 1))) / 2


def _shape(size: str, side: int = 224) -> ModelConfig:
    vit = ViT.shapes[size]
    return replace(vit, family="deit", embed=ImageConfig((side, side), extra=2), details=(("taught", True),))


class DeiT(Family):
    shapes: ClassVar[Mapping[str, ModelConfig]] = {
        "tiny": _shape("tiny"),
        "small": _shape("small"),
        "base": _shape("base"),
        "base384": _shape("base", 384),
    }
    prefix: ClassVar[str] = "deit."
    architectures: ClassVar[Mapping[str, tuple[str, ...]]] = {"DeiTModel": (), "DeiTForImageClassification": ("classify",), TAUGHT: ("classify",)}
    names: ClassVar[Names] = {
        **ViT.names,
        "embed.extra.1": "embeddings.distillation_token",
        "heads.classify.distilled": "distillation_classifier",
    }

    def read(self, config: Mapping[str, Any]) -> ModelConfig:
        if "architecture" in config:
            return timm_shape(config, DeiT.shapes, "deit")
        details = (("taught", True),) if TAUGHT in architectures(config) else ()
        return ModelConfig("deit", image_of(config, extra=2), image_encoder(config), details=details)

    def write(self, config: ModelConfig) -> dict[str, Any]:
        return {"model_type": "deit", **image_said(config.embed), **encoder_said(config.encoder), "qkv_bias": config.encoder.attention_bias}  # type: ignore[attr-defined]

    def head(self, name: str, config: ModelConfig, labels: int) -> nn.Module:
        width = config.encoder.width
        return {"classify": Taught(width, labels) if config.detail("taught") else heads.Linear(width, labels, "texts", config.head_dropout)}[name]

    def architecture(self, config: ModelConfig) -> str:
        return TAUGHT if config.heads and config.detail("taught") else super().architecture(config)

    def recognises(self, config: Mapping[str, Any]) -> bool:
        name = str(config.get("architecture", ""))
        return (name.startswith("deit_") and "distilled" in name) or super().recognises(config)

    def foreign(self, weights: Weights) -> Weights:
        """The first of a taught one's two heads goes by the name that the one head of the others has."""
        weights = from_timm(weights) if "patch_embed.proj.weight" in weights else weights
        return {name.replace("cls_classifier.", "classifier."): one for name, one in weights.items()}

    def native(self, config: ModelConfig, name: str) -> str:
        return f"cls_{name}" if config.detail("taught") and name.startswith("classifier.") else name
