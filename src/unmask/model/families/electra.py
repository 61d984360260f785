"""ELECTRA (Clark et al. 2020): a generator that fills masks, and a discriminator that says which words were put in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from unmask.errors import UserError
from unmask.model import heads
from unmask.model.embed import TextConfig
from unmask.model.encoder import EncoderConfig
from unmask.model.families.base import Family, Names, encoder_of, encoder_said, flag, part, whole, words_of, words_said
from unmask.model.families.bert import BUFFERS, TRUNK
from unmask.model.model import ModelConfig


def _shape(depth: int, width: int, embedding: int) -> ModelConfig:
    encoder = EncoderConfig(width, depth, heads=width // 64, hidden=4 * width, dropout=0.1, attention_dropout=0.1)
    return ModelConfig("electra", TextConfig(30_522, width=embedding * (embedding != width), dropout=0.1), encoder, pooler=False, head_dropout=0.1)


class Electra(Family):
    shapes: ClassVar[Mapping[str, ModelConfig]] = {
        "small": _shape(12, 256, 128),
        "base": _shape(12, 768, 768),
        "large": _shape(24, 1024, 1024),
        "small_generator": _shape(12, 256, 128),
        "base_generator": _shape(12, 256, 768),
        "large_generator": _shape(24, 256, 1024),
    }
    prefix: ClassVar[str] = "electra."
    architectures: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "ElectraModel": (),
        "ElectraForPreTraining": ("replaced",),
        "ElectraForMaskedLM": ("words",),
        "ElectraForSequenceClassification": ("classify",),
        "ElectraForTokenClassification": ("tag",),
        "ElectraForQuestionAnswering": ("spans",),
        "ElectraForMultipleChoice": ("choice",),
    }
    names: ClassVar[Names] = {
        **TRUNK,
        "embed.project": "embeddings_project",
        "heads.replaced.dense": "discriminator_predictions.dense",
        "heads.replaced.out": "discriminator_predictions.dense_prediction",
        "heads.words.dense": "generator_predictions.dense",
        "heads.words.norm": "generator_predictions.LayerNorm",
        "heads.words.decoder": "generator_lm_head",
        "heads.classify.dense": "classifier.dense",
        "heads.classify.out": "classifier.out_proj",
        "heads.tag.out": "classifier",
        "heads.spans.out": "qa_outputs",
        "heads.choice.dense": "sequence_summary.summary",
        "heads.choice.out": "classifier",
    }
    buffers: ClassVar[tuple[str, ...]] = BUFFERS

    def read(self, config: Mapping[str, Any]) -> ModelConfig:
        encoder = encoder_of(config)
        if config.get("summary_type", "first") != "first" or config.get("summary_activation", "gelu") != "gelu" or not config.get("summary_use_proj", True):
            raise UserError("config.json sums a text up in a way that is not known here (summary_type, summary_activation); only 'first' with 'gelu' is")
        embedding = whole(config, "embedding_size", 128)
        words = words_of(config, width=embedding if embedding != encoder.width else 0)
        dropout = part(config, "classifier_dropout", encoder.dropout)
        return ModelConfig("electra", words, encoder, pooler=False, tied=flag(config, "tie_word_embeddings", True), head_dropout=dropout)

    def recognises(self, config: Mapping[str, Any]) -> bool:
        bare = {"embedding_size", "vocab_size"} <= set(config) and not {"architectures", "num_hidden_groups"} & set(config)
        return super().recognises(config) or bare

    def write(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config.embed, TextConfig)
        heads = {"classifier_dropout": config.head_dropout, "tie_word_embeddings": config.tied}
        inner = {"embedding_size": config.embed.width or config.encoder.width}
        return {"model_type": "electra", **words_said(config.embed), **inner, **encoder_said(config.encoder), **heads}

    def head(self, name: str, config: ModelConfig, labels: int) -> nn.Module:
        words, encoder, drop = config.embed, config.encoder, config.head_dropout
        assert isinstance(words, TextConfig)
        assert isinstance(encoder, EncoderConfig)
        width = encoder.width
        if name == "words":
            return heads.Words(width, words.width or width, words.vocabulary, "gelu", encoder.epsilon)
        if name == "replaced":
            return heads.Dense(width, labels, "tokens", encoder.activation)
        if name in ("classify", "choice"):
            return heads.Dense(width, labels, "texts", "gelu", (drop, drop) if name == "classify" else (0.0, 0.1))
        return {"tag": heads.Linear(width, labels, "tokens", drop), "spans": heads.Linear(width, labels, "tokens")}[name]
