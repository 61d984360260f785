"""DistilBERT (Sanh et al. 2019): half of BERT's layers, no segments, no pooler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from unmask.model import heads
from unmask.model.embed import TextConfig
from unmask.model.encoder import EncoderConfig
from unmask.model.families.base import Family, Names, flag, part, text, whole
from unmask.model.model import ModelConfig


def _shape(vocabulary: int) -> ModelConfig:
    encoder = EncoderConfig(768, 6, 12, hidden=3072, dropout=0.1, attention_dropout=0.1)
    return ModelConfig("distilbert", TextConfig(vocabulary, segments=0, dropout=0.1), encoder, pooler=False, details=DROPS)


DROPS = (("qa_dropout", 0.1), ("seq_classif_dropout", 0.2))


class DistilBert(Family):
    shapes: ClassVar[Mapping[str, ModelConfig]] = {"base": _shape(30_522), "base_cased": _shape(28_996), "multilingual": _shape(119_547)}
    prefix: ClassVar[str] = "distilbert."
    architectures: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "DistilBertModel": (),
        "DistilBertForMaskedLM": ("words",),
        "DistilBertForSequenceClassification": ("classify",),
        "DistilBertForTokenClassification": ("tag",),
        "DistilBertForQuestionAnswering": ("spans",),
        "DistilBertForMultipleChoice": ("choice",),
    }
    names: ClassVar[Names] = {
        "embed.words": "embeddings.word_embeddings",
        "embed.positions": "embeddings.position_embeddings",
        "embed.norm": "embeddings.LayerNorm",
        "encoder.layers.{}.attention.qkv": (
            "transformer.layer.{}.attention.q_lin",
            "transformer.layer.{}.attention.k_lin",
            "transformer.layer.{}.attention.v_lin",
        ),
        "encoder.layers.{}.attention.out": "transformer.layer.{}.attention.out_lin",
        "encoder.layers.{}.attention_norm": "transformer.layer.{}.sa_layer_norm",
        "encoder.layers.{}.feed.up": "transformer.layer.{}.ffn.lin1",
        "encoder.layers.{}.feed.down": "transformer.layer.{}.ffn.lin2",
        "encoder.layers.{}.feed_norm": "transformer.layer.{}.output_layer_norm",
        "heads.words.dense": "vocab_transform",
        "heads.words.norm": "vocab_layer_norm",
        "heads.words.decoder": "vocab_projector",
        "heads.classify.dense": "pre_classifier",
        "heads.classify.out": "classifier",
        "heads.tag.out": "classifier",
        "heads.spans.out": "qa_outputs",
        "heads.choice.dense": "pre_classifier",
        "heads.choice.out": "classifier",
    }
    buffers: ClassVar[tuple[str, ...]] = ("embeddings.position_ids",)

    def read(self, config: Mapping[str, Any]) -> ModelConfig:
        dropout, padding = part(config, "dropout", 0.1), config.get("pad_token_id")
        return ModelConfig(
            "distilbert",
            TextConfig(
                vocabulary=whole(config, "vocab_size"),
                positions=whole(config, "max_position_embeddings", 512),  # in the file also where they are sines
                segments=0,
                dropout=dropout,
                padding=padding if type(padding) is int else 0,
            ),
            EncoderConfig(
                width=whole(config, "dim"),
                depth=whole(config, "n_layers"),
                heads=whole(config, "n_heads"),
                hidden=whole(config, "hidden_dim"),
                activation=text(config, "activation", "gelu"),
                dropout=dropout,
                attention_dropout=part(config, "attention_dropout", 0.1),
            ),
            pooler=False,
            tied=flag(config, "tie_word_embeddings", True),
            details=tuple((name, part(config, name, usual)) for name, usual in DROPS),
        )

    def recognises(self, config: Mapping[str, Any]) -> bool:
        return super().recognises(config) or "sinusoidal_pos_embds" in config

    def write(self, config: ModelConfig) -> dict[str, Any]:
        words, encoder = config.embed, config.encoder
        assert isinstance(words, TextConfig)
        assert isinstance(encoder, EncoderConfig)
        return {
            "model_type": "distilbert",
            "vocab_size": words.vocabulary,
            "max_position_embeddings": words.positions,
            "pad_token_id": words.padding,
            "sinusoidal_pos_embds": False,
            "dim": encoder.width,
            "n_layers": encoder.depth,
            "n_heads": encoder.heads,
            "hidden_dim": encoder.hidden,
            "activation": encoder.activation,
            "dropout": encoder.dropout,
            "attention_dropout": encoder.attention_dropout,
            "tie_word_embeddings": config.tied,
            **dict(config.details),
        }

    def head(self, name: str, config: ModelConfig, labels: int) -> nn.Module:
        words, encoder = config.embed, config.encoder
        assert isinstance(words, TextConfig)
        assert isinstance(encoder, EncoderConfig)
        if name == "words":
            return heads.Words(encoder.width, encoder.width, words.vocabulary, encoder.activation, encoder.epsilon)
        if name in ("classify", "choice"):
            return heads.Dense(encoder.width, labels, "texts", "relu", (0.0, config.detail("seq_classif_dropout", 0.2)))
        drop = {"tag": encoder.dropout, "spans": config.detail("qa_dropout", 0.1)}[name]
        return heads.Linear(encoder.width, labels, "tokens", drop)
