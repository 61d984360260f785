"""ViT (Dosovitskiy et al. 2020). Loads transformers' folders, timm's folders and google-research's .npz files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from torch import nn

from unmask.errors import UserError, near
from unmask.model import heads
from unmask.model.embed import ImageConfig
from unmask.model.encoder import EncoderConfig
from unmask.model.families.base import Family, Names, encoder_of, encoder_said, flag, image_of, image_said, two, whole
from unmask.model.folder import Stored, Weights
from unmask.model.model import ModelConfig

EPSILON = 1e-6  # of the published weights; transformers' own default is 1e-12


def _shape(depth: int, width: int, heads: int, patch: int = 16) -> ModelConfig:
    encoder = EncoderConfig(width, depth, heads, hidden=4 * width, norm="pre", epsilon=EPSILON)
    return ModelConfig("vit", ImageConfig(patch=patch), encoder, pooler=False)


class ViT(Family):
    shapes: ClassVar[Mapping[str, ModelConfig]] = {
        "tiny": _shape(12, 192, 3),
        "small": _shape(12, 384, 6),
        "base": _shape(12, 768, 12),
        "base32": _shape(12, 768, 12, patch=32),
        "large": _shape(24, 1024, 16),
        "large32": _shape(24, 1024, 16, patch=32),
        "huge": _shape(32, 1280, 16, patch=14),
    }
    prefix: ClassVar[str] = "vit."
    architectures: ClassVar[Mapping[str, tuple[str, ...]]] = {"ViTModel": (), "ViTForImageClassification": ("classify",)}
    names: ClassVar[Names] = {
        "embed.project": "embeddings.patch_embeddings.projection",
        "embed.extra.0": "embeddings.cls_token",
        "embed.positions": "embeddings.position_embeddings",
        "encoder.layers.{}.attention.qkv": (
            "encoder.layer.{}.attention.attention.query",
            "encoder.layer.{}.attention.attention.key",
            "encoder.layer.{}.attention.attention.value",
        ),
        "encoder.layers.{}.attention.out": "encoder.layer.{}.attention.output.dense",
        "encoder.layers.{}.attention_norm": "encoder.layer.{}.layernorm_before",
        "encoder.layers.{}.feed.up": "encoder.layer.{}.intermediate.dense",
        "encoder.layers.{}.feed.down": "encoder.layer.{}.output.dense",
        "encoder.layers.{}.feed_norm": "encoder.layer.{}.layernorm_after",
        "encoder.norm": "layernorm",
        "pooler.dense": "pooler.dense",
        "heads.classify.out": "classifier",
    }

    def read(self, config: Mapping[str, Any]) -> ModelConfig:
        return timm_shape(config, ViT.shapes, "vit|deit") if "architecture" in config else ModelConfig("vit", image_of(config, extra=1), image_encoder(config))

    def write(self, config: ModelConfig) -> dict[str, Any]:
        return {"model_type": "vit", **image_said(config.embed), **encoder_said(config.encoder), "qkv_bias": config.encoder.attention_bias}  # type: ignore[attr-defined]

    def head(self, name: str, config: ModelConfig, labels: int) -> nn.Module:
        return {"classify": heads.Linear(config.encoder.width, labels, "texts", config.head_dropout)}[name]

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """timm's deit_base_patch16_224, trained without a teacher's token, is a ViT."""
        name = str(config.get("architecture", ""))
        return name.startswith("vit_") or (name.startswith("deit_") and "distilled" not in name) or super().recognises(config)

    def bare(self, weights: Weights) -> dict[str, Any] | None:
        if "Transformer/encoder_norm/scale" not in weights:
            return None
        try:
            return _google_config(weights)
        except (KeyError, ValueError) as error:
            raise UserError(f"the weights are named as google-research names a ViT's, but are not whole ({error}); copy the file again") from None

    def foreign(self, weights: Weights) -> Weights:
        if "patch_embed.proj.weight" in weights:
            return from_timm(weights)
        if "Transformer/encoder_norm/scale" in weights:
            return _from_google(weights)
        return weights


def image_encoder(config: Mapping[str, Any]) -> EncoderConfig:
    """What a ViT's config says of its encoder, and a DeiT's."""
    sizes = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
    return encoder_of({**sizes, **config}, dropout=0.0, norm="pre", attention_bias=flag(config, "qkv_bias", True))


def _pooled(found: Weights) -> Weights:
    """The layer before the head that weights of ImageNet-21k have (pre_logits) is transformers' pooler, and a ViT with one has no head there.

    The published files keep a head beside it that is zero all over.
    """
    head = [name for name in ("classifier.weight", "classifier.bias") if name in found]
    if "pooler.dense.weight" not in found or not head:
        return found
    if any(found[name].read().any() for name in head):
        raise UserError("the weights hold a head over pre_logits, for which transformers' ViT has no place; give weights without pre_logits or without a head")
    return {name: one for name, one in found.items() if name not in head}


# ---- timm


def timm_shape(config: Mapping[str, Any], shapes: Mapping[str, ModelConfig], kind: str) -> ModelConfig:
    """timm's config.json names an architecture such as vit_base_patch16_224: of some kind, one of our shapes, with its own patch and size."""
    if config.get("global_pool") not in (None, "", "token"):
        raise UserError(f"config.json pools by {config['global_pool']!r}; a ViT whose head reads the class token (global_pool 'token') is known here")
    found = re.match(rf"(?:{kind})_(tiny|small|base|large|huge)(?:_distilled)?_patch(\d+)_(\d+)$", str(config["architecture"]))
    if found is None or found[1] not in shapes:
        known = [f"vit_{size}_patch16_224" for size in ("tiny", "small", "base", "large")]
        raise UserError(f"timm's architecture {config['architecture']!r} is not a plain ViT{near(str(config['architecture']), known)}")
    shape, side = shapes[found[1]], int(found[3])
    settings = config.get("pretrained_cfg", config)
    channels, *sides = (settings.get("input_size") if isinstance(settings, dict) else None) or (3, side, side)
    size = two({"input_size": sides}, "input_size", side)
    embed = ImageConfig(size, int(found[2]), whole({"input_size": channels}, "input_size"), shape.embed.extra)  # type: ignore[union-attr]
    return replace(shape, embed=embed)


TIMM = {
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "norm": "layernorm",
    "head": "classifier",
    "attn.proj": "attention.output.dense",
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
    "pre_logits.fc": "pooler.dense",
    "head_dist": "distillation_classifier",
}
TIMM_TOKENS = {"cls_token": "embeddings.cls_token", "dist_token": "embeddings.distillation_token", "pos_embed": "embeddings.position_embeddings"}


def from_timm(weights: Weights) -> Weights:
    found: Weights = {}
    for name, one in weights.items():
        block = re.match(r"blocks\.(\d+)\.(.+)$", name)
        module, _, last = (block[2] if block else name).rpartition(".")
        before = f"encoder.layer.{block[1]}." if block else ""
        if module == "attn.qkv":
            for i, part in enumerate(("query", "key", "value")):
                found[f"{before}attention.attention.{part}.{last}"] = _third(one, i)
        elif module in TIMM:
            found[f"{before}{TIMM[module]}.{last}"] = one
        else:
            found[TIMM_TOKENS.get(name, name)] = one
    return _pooled(found)


def _third(one: Stored, i: int) -> Stored:
    rows = one.shape[0] // 3
    return Stored((rows, *one.shape[1:]), lambda: one.read()[i * rows : (i + 1) * rows])


# ---- google-research


GOOGLE = {
    "embedding": "embeddings.patch_embeddings.projection",
    "cls": "embeddings.cls_token",
    "Transformer/posembed_input/pos_embedding": "embeddings.position_embeddings",
    "Transformer/encoder_norm": "layernorm",
    "pre_logits": "pooler.dense",
    "head": "classifier",
    "LayerNorm_0": "layernorm_before",
    "LayerNorm_2": "layernorm_after",
    "MlpBlock_3/Dense_0": "intermediate.dense",
    "MlpBlock_3/Dense_1": "output.dense",
    "MultiHeadDotProductAttention_1/query": "attention.attention.query",
    "MultiHeadDotProductAttention_1/key": "attention.attention.key",
    "MultiHeadDotProductAttention_1/value": "attention.attention.value",
    "MultiHeadDotProductAttention_1/out": "attention.output.dense",
}


def _from_google(weights: Weights) -> Weights:
    """JAX keeps matrices the other way round, and attention's split into heads: query (D, N, H), out (N, H, D)."""
    found: Weights = {}
    for name, one in weights.items():
        if name in GOOGLE:
            found[GOOGLE[name]] = one
            continue
        module, _, last = name.rpartition("/")
        block = re.match(r"Transformer/encoderblock_(\d+)/(.+)$", module)
        inner = block[2] if block else module
        if inner not in GOOGLE:
            found[name] = one
            continue
        before = f"encoder.layer.{block[1]}." if block else ""
        suffix = "bias" if last == "bias" else "weight"
        found[f"{before}{GOOGLE[inner]}.{suffix}"] = _turned(one, inner, last)
    return _pooled(found)


def _turned(one: Stored, module: str, last: str) -> Stored:
    tensor = one.read()
    axes = {"embedding": 4}.get(module, 3 if "DotProduct" in module else 2)
    if last == "kernel" and tensor.dim() != axes:
        raise UserError(f"the kernel of {module} has {tensor.dim()} axes, not {axes}: it is not as google-research keeps a ViT; copy the file again")
    if last == "kernel" and module == "embedding":
        tensor = tensor.permute(3, 2, 0, 1)  # (P, P, C, D) -> (D, C, P, P)
    elif last == "kernel" and module.endswith("/out"):
        tensor = tensor.flatten(0, 1).T
    elif last == "kernel":
        tensor = tensor.flatten(1).T
    elif last == "bias":
        tensor = tensor.flatten()
    return Stored(tuple(tensor.shape), lambda: tensor.contiguous())


def _google_config(weights: Weights) -> dict[str, Any]:
    """The shape of a google-research .npz, which has no config: all of it can be read off the weights. Pictures are prepared as its code does."""
    side, _, channels, _ = weights["embedding/kernel"].shape
    width, heads, _ = weights["Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel"].shape
    size = round((weights["Transformer/posembed_input/pos_embedding"].shape[1] - 1) ** 0.5) * side
    half = [0.5] * channels
    return {
        "model_type": "vit",
        "image_size": size,
        "patch_size": side,
        "num_channels": channels,
        "hidden_size": width,
        "num_hidden_layers": sum(name.endswith("/LayerNorm_0/scale") for name in weights),
        "num_attention_heads": heads,
        "intermediate_size": weights["Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel"].shape[1],
        "layer_norm_eps": EPSILON,
        "pretrained_cfg": {"input_size": [channels, size, size], "mean": half, "std": half, "crop_mode": "squash", "crop_pct": 1.0},
    }
