"""ALBERT (Lan et al. 2019): one layer's weights used over and over, a narrow embedding, and the order of sentences in place of the next one.

Its second pretraining head answers what BERT's does, whether the second text follows the first, so it is `next` here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from unmask.errors import UserError
from unmask.model import heads
from unmask.model.embed import TextConfig
from unmask.model.encoder import EncoderConfig
from unmask.model.families.base import Family, Names, encoder_of, encoder_said, flag, part, whole, words_of, words_said
from unmask.model.families.bert import BUFFERS
from unmask.model.model import ModelConfig

LAYER = "encoder.albert_layer_groups.{}.albert_layers.0"


def _shape(depth: int, width: int, heads: int) -> ModelConfig:
    """The second version's, which drops nothing."""
    encoder = EncoderConfig(width, depth, heads, hidden=4 * width, activation="gelu_new", distinct=1)
    return ModelConfig("albert", TextConfig(30_000, width=128), encoder, head_dropout=0.1)


class Albert(Family):
    shapes: ClassVar[Mapping[str, ModelConfig]] = {
        "base": _shape(12, 768, 12),
        "large": _shape(24, 1024, 16),
        "xlarge": _shape(24, 2048, 16),
        "xxlarge": _shape(12, 4096, 64),
    }
    prefix: ClassVar[str] = "albert."
    architectures: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "AlbertModel": (),
        "AlbertForPreTraining": ("words", "next"),
        "AlbertForMaskedLM": ("words",),
        "AlbertForSequenceClassification": ("classify",),
        "AlbertForTokenClassification": ("tag",),
        "AlbertForQuestionAnswering": ("spans",),
        "AlbertForMultipleChoice": ("choice",),
    }
    names: ClassVar[Names] = {
        "embed.words": "embeddings.word_embeddings",
        "embed.positions": "embeddings.position_embeddings",
        "embed.segments": "embeddings.token_type_embeddings",
        "embed.norm": "embeddings.LayerNorm",
        "embed.project": "encoder.embedding_hidden_mapping_in",
        "encoder.layers.{}.attention.qkv": (f"{LAYER}.attention.query", f"{LAYER}.attention.key", f"{LAYER}.attention.value"),
        "encoder.layers.{}.attention.out": f"{LAYER}.attention.dense",
        "encoder.layers.{}.attention_norm": f"{LAYER}.attention.LayerNorm",
        "encoder.layers.{}.feed.up": f"{LAYER}.ffn",
        "encoder.layers.{}.feed.down": f"{LAYER}.ffn_output",
        "encoder.layers.{}.feed_norm": f"{LAYER}.full_layer_layer_norm",
        "pooler.dense": "pooler",
        "heads.words.dense": "predictions.dense",
        "heads.words.norm": "predictions.LayerNorm",
        "heads.words.decoder.weight": "predictions.decoder.weight",
        "heads.words.decoder.bias": "predictions.bias",
        "heads.next.out": "sop_classifier.classifier",
        "heads.classify.out": "classifier",
        "heads.tag.out": "classifier",
        "heads.spans.out": "qa_outputs",
        "heads.choice.out": "classifier",
    }
    aliases: ClassVar[Mapping[str, str]] = {"predictions.decoder.bias": "predictions.bias"}
    buffers: ClassVar[tuple[str, ...]] = BUFFERS

    def read(self, config: Mapping[str, Any]) -> ModelConfig:
        if config.get("inner_group_num", 1) != 1:
            raise UserError(
                f"config.json says inner_group_num is {config['inner_group_num']!r}; one layer a group, as all published ALBERTs have it, is known here"
            )
        return ModelConfig(
            "albert",
            words_of(config, dropout=0.0, width=whole(config, "embedding_size", 128)),
            encoder_of(config, dropout=0.0, activation="gelu_new", distinct=whole(config, "num_hidden_groups", 1)),
            tied=flag(config, "tie_word_embeddings", True),
            head_dropout=part(config, "classifier_dropout_prob", 0.1),
        )

    def recognises(self, config: Mapping[str, Any]) -> bool:
        return super().recognises(config) or ("num_hidden_groups" in config and "architectures" not in config)

    def write(self, config: ModelConfig) -> dict[str, Any]:
        words, encoder = config.embed, config.encoder
        assert isinstance(words, TextConfig)
        shared = {"embedding_size": words.width, "num_hidden_groups": encoder.layers, "inner_group_num": 1}
        heads = {"classifier_dropout_prob": config.head_dropout, "tie_word_embeddings": config.tied}
        return {"model_type": "albert", **words_said(words), **encoder_said(encoder), **shared, **heads}

    def head(self, name: str, config: ModelConfig, labels: int) -> nn.Module:
        words, encoder = config.embed, config.encoder
        assert isinstance(words, TextConfig)
        assert isinstance(encoder, EncoderConfig)
        if name == "words":
            return heads.Words(encoder.width, words.width, words.vocabulary, encoder.activation, encoder.epsilon)
        over: dict[str, heads.Over] = {"next": "pooled", "classify": "pooled", "choice": "pooled", "tag": "tokens", "spans": "tokens"}
        return heads.Linear(encoder.width, labels, over[name], 0.0 if name == "spans" else config.head_dropout)
