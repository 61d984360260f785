"""A family of our own, for the most that few words and little time can teach: pre-norm, rotary positions, gated GELU, no biases, as ModernBERT; and
queries and keys of one length (Henry et al. 2020), a gate on what attention brings (Samuel 2023), and layers that begin as if they were not there.

No other library reads its folders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from unmask.model import heads
from unmask.model.embed import TextConfig
from unmask.model.encoder import EncoderConfig
from unmask.model.families.base import Family, Names, flag, part, whole
from unmask.model.model import Model, ModelConfig, initialise

BASE = 10_000.0  # of the rotary positions


def _shape(depth: int, width: int, heads: int, hidden: int) -> ModelConfig:
    words = TextConfig(8_192, segments=0, kind="none", norm_bias=False, epsilon=1e-5)
    return ModelConfig("gated", words, _encoder(depth, width, heads, hidden), pooler=False)


def _encoder(depth: int, width: int, heads: int, hidden: int, dropout: float = 0.0, attention_dropout: float = 0.0) -> EncoderConfig:
    return EncoderConfig(
        width,
        depth,
        heads,
        hidden,
        norm="pre",
        epsilon=1e-5,
        gated=True,
        rotary=(BASE,),
        attention_bias=False,
        output_bias=False,
        feed_bias=False,
        norm_bias=False,
        query_key_norm=True,
        attention_gate=True,
        dropout=dropout,
        attention_dropout=attention_dropout,
    )


class Gated(Family):
    shapes: ClassVar[Mapping[str, ModelConfig]] = {"small": _shape(12, 384, 6, 1024), "medium": _shape(12, 512, 8, 1408), "base": _shape(12, 768, 12, 2048)}
    prefix: ClassVar[str] = "gated."
    architectures: ClassVar[Mapping[str, tuple[str, ...]]] = {  # names of our own
        "GatedModel": (),
        "GatedForMaskedLM": ("words",),
        "GatedForSequenceClassification": ("classify",),
        "GatedForTokenClassification": ("tag",),
        "GatedForQuestionAnswering": ("spans",),
        "GatedForMultipleChoice": ("choice",),
    }
    model_types: ClassVar[tuple[str, ...]] = ("unmask-gated",)
    names: ClassVar[Names] = {
        name: name
        for name in (
            *("embed.words", "embed.norm", "encoder.norm", "heads.words.dense", "heads.words.norm", "heads.words.decoder"),
            *(f"encoder.layers.{{}}.{name}" for name in ("attention.qkv", "attention.gate", "attention.out", "feed.up", "feed.down")),
            *("encoder.layers.{}.attention_norm", "encoder.layers.{}.feed_norm"),
            *(f"heads.{head}.out" for head in ("classify", "tag", "spans", "choice")),
        )
    }

    def head(self, name: str, config: ModelConfig, labels: int) -> nn.Module:
        width, words = config.encoder.width, config.embed
        assert isinstance(words, TextConfig)
        if name == "words":
            return heads.Words(width, width, words.vocabulary, "gelu", words.epsilon, bias=False, norm_bias=False)
        over: heads.Over = {"classify": "texts", "choice": "texts", "tag": "tokens", "spans": "tokens"}[name]  # type: ignore[assignment]
        return heads.Linear(width, labels, over, config.head_dropout if name != "spans" else 0.0, mean=True)

    @torch.no_grad()
    def start(self, model: Model, draw: torch.Generator) -> None:
        """What a layer adds is nothing at first, and its gates stand half open."""
        initialise(model, draw)
        for layer in model.encoder.layers:
            for weight in (layer.attention.out.weight, layer.feed.down.weight, layer.attention.gate.weight):
                weight.zero_()

    def read(self, config: Mapping[str, Any]) -> ModelConfig:
        said = config.get("pad_token_id")
        words = TextConfig(
            vocabulary=whole(config, "vocab_size"),
            positions=whole(config, "max_position_embeddings", 512),
            segments=0,
            kind="none",
            norm_bias=False,
            epsilon=1e-5,
            dropout=part(config, "hidden_dropout_prob", 0.0),
            padding=said if type(said) is int and said >= 0 else 0,
        )
        depth, width, count, hidden = (whole(config, name) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"))
        encoder = _encoder(depth, width, count, hidden, words.dropout, part(config, "attention_probs_dropout_prob", 0.0))
        tied, dropout = flag(config, "tie_word_embeddings", True), part(config, "classifier_dropout", 0.0)
        return ModelConfig("gated", words, encoder, pooler=False, tied=tied, head_dropout=dropout)

    def write(self, config: ModelConfig) -> dict[str, Any]:
        words, encoder = config.embed, config.encoder
        assert isinstance(words, TextConfig)
        assert isinstance(encoder, EncoderConfig)
        return {
            "model_type": "unmask-gated",
            "vocab_size": words.vocabulary,
            "max_position_embeddings": words.positions,
            "pad_token_id": words.padding,
            "hidden_size": encoder.width,
            "num_hidden_layers": encoder.depth,
            "num_attention_heads": encoder.heads,
            "intermediate_size": encoder.hidden,
            "hidden_dropout_prob": encoder.dropout,
            "attention_probs_dropout_prob": encoder.attention_dropout,
            "classifier_dropout": config.head_dropout,
            "tie_word_embeddings": config.tied,
        }
