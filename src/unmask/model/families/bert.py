"""BERT (Devlin et al. 2018), and the smaller shapes of Turc et al. 2019."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from unmask.model import heads
from unmask.model.embed import TextConfig
from unmask.model.encoder import EncoderConfig
from unmask.model.families.base import Family, Names, counts_on, encoder_of, encoder_said, flag, part, words_of, words_said
from unmask.model.layout import CAUSAL
from unmask.model.model import ModelConfig

TRUNK: Names = {
    "embed.words": "embeddings.word_embeddings",
    "embed.positions": "embeddings.position_embeddings",
    "embed.segments": "embeddings.token_type_embeddings",
    "embed.norm": "embeddings.LayerNorm",
    "encoder.layers.{}.attention.qkv": (
        "encoder.layer.{}.attention.self.query",
        "encoder.layer.{}.attention.self.key",
        "encoder.layer.{}.attention.self.value",
    ),
    "encoder.layers.{}.attention.out": "encoder.layer.{}.attention.output.dense",
    "encoder.layers.{}.attention_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "encoder.layers.{}.feed.up": "encoder.layer.{}.intermediate.dense",
    "encoder.layers.{}.feed.down": "encoder.layer.{}.output.dense",
    "encoder.layers.{}.feed_norm": "encoder.layer.{}.output.LayerNorm",
}
"""Also RoBERTa's and ELECTRA's."""
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")


def _shape(depth: int, width: int) -> ModelConfig:
    encoder = EncoderConfig(width, depth, heads=width // 64, hidden=4 * width, dropout=0.1, attention_dropout=0.1)
    return ModelConfig("bert", TextConfig(30_522, dropout=0.1), encoder, head_dropout=0.1)


class Bert(Family):
    shapes: ClassVar[Mapping[str, ModelConfig]] = {
        "tiny": _shape(2, 128),
        "mini": _shape(4, 256),
        "small": _shape(4, 512),
        "medium": _shape(8, 512),
        "base": _shape(12, 768),
        "large": _shape(24, 1024),
    }
    prefix: ClassVar[str] = "bert."
    architectures: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "BertModel": (),
        "BertForPreTraining": ("words", "next"),
        "BertForMaskedLM": ("words",),
        "BertLMHeadModel": ("words",),
        "BertForNextSentencePrediction": ("next",),
        "BertForSequenceClassification": ("classify",),
        "BertForTokenClassification": ("tag",),
        "BertForQuestionAnswering": ("spans",),
        "BertForMultipleChoice": ("choice",),
    }
    names: ClassVar[Names] = {
        **TRUNK,
        "pooler.dense": "pooler.dense",
        "heads.words.dense": "cls.predictions.transform.dense",
        "heads.words.norm": "cls.predictions.transform.LayerNorm",
        "heads.words.decoder.weight": "cls.predictions.decoder.weight",
        "heads.words.decoder.bias": "cls.predictions.bias",
        "heads.next.out": "cls.seq_relationship",
        "heads.classify.out": "classifier",
        "heads.tag.out": "classifier",
        "heads.spans.out": "qa_outputs",
        "heads.choice.out": "classifier",
    }
    aliases: ClassVar[Mapping[str, str]] = {"cls.predictions.decoder.bias": "cls.predictions.bias"}
    buffers: ClassVar[tuple[str, ...]] = BUFFERS

    def read(self, config: Mapping[str, Any]) -> ModelConfig:
        encoder = encoder_of(config)
        dropout = part(config, "classifier_dropout", encoder.dropout)
        return ModelConfig("bert", words_of(config), encoder, tied=flag(config, "tie_word_embeddings", True), head_dropout=dropout)

    def recognises(self, config: Mapping[str, Any]) -> bool:
        """Google's own bert_config.json says neither model_type nor architectures."""
        bare = "type_vocab_size" in config and not {"architectures", "embedding_size"} & set(config)
        return super().recognises(config) or (bare and not counts_on(config))

    def write(self, config: ModelConfig) -> dict[str, Any]:
        heads = {"classifier_dropout": config.head_dropout, "tie_word_embeddings": config.tied}
        return {"model_type": "bert", **words_said(config.embed), **encoder_said(config.encoder), **heads}

    def architecture(self, config: ModelConfig) -> str:
        """A word head over what reads left to right has a class of its own there."""
        found = super().architecture(config)
        decodes = isinstance(config.encoder, EncoderConfig) and config.encoder.reach == (CAUSAL,)
        return "BertLMHeadModel" if found == "BertForMaskedLM" and decodes else found

    def head(self, name: str, config: ModelConfig, labels: int) -> nn.Module:
        words, encoder = config.embed, config.encoder
        assert isinstance(words, TextConfig)
        assert isinstance(encoder, EncoderConfig)
        if name == "words":
            return heads.Words(encoder.width, encoder.width, words.vocabulary, encoder.activation, encoder.epsilon)
        over: dict[str, heads.Over] = {"next": "pooled", "classify": "pooled", "choice": "pooled", "tag": "tokens", "spans": "tokens"}
        drop = config.head_dropout if name in ("classify", "choice", "tag") else 0.0
        return heads.Linear(encoder.width, labels, over[name], drop)
