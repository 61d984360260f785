"""RoBERTa (Liu et al. 2019): BERT with other training, positions from 2 on, and no next sentence. Also XLM-R (Conneau et al. 2019).

Korean models of this shape (klue/roberta) have BERT's tokenizer and one segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from torch import nn

from unmask.errors import UserError
from unmask.model import heads
from unmask.model.embed import TextConfig
from unmask.model.encoder import EncoderConfig
from unmask.model.families.base import Family, Names, counts_on, encoder_of, encoder_said, flag, part, words_of, words_said
from unmask.model.families.bert import BUFFERS, TRUNK
from unmask.model.model import ModelConfig

XLM = (("model_type", "xlm-roberta"),)
HEADS = {"Model": (), "ForMaskedLM": ("words",), "ForSequenceClassification": ("classify",), "ForTokenClassification": ("tag",)}
HEADS |= {"ForQuestionAnswering": ("spans",), "ForMultipleChoice": ("choice",)}


def _shape(depth: int, width: int, vocabulary: int, details: tuple[tuple[str, Any], ...] = ()) -> ModelConfig:
    encoder = EncoderConfig(width, depth, heads=width // 64, hidden=4 * width, epsilon=1e-5, dropout=0.1, attention_dropout=0.1)
    words = TextConfig(vocabulary, positions=512, segments=1, first=2, epsilon=1e-5, dropout=0.1, padding=1)
    return ModelConfig("roberta", words, encoder, head_dropout=0.1, details=details)


class Roberta(Family):
    shapes: ClassVar[Mapping[str, ModelConfig]] = {
        "base": _shape(12, 768, 50_265),
        "large": _shape(24, 1024, 50_265),
        "xlm_base": _shape(12, 768, 250_002, XLM),
        "xlm_large": _shape(24, 1024, 250_002, XLM),
        "klue_small": _shape(6, 768, 32_000),
        "klue_base": _shape(12, 768, 32_000),
        "klue_large": _shape(24, 1024, 32_000),
    }
    prefix: ClassVar[str] = "roberta."
    model_types: ClassVar[tuple[str, ...]] = ("xlm-roberta",)
    architectures: ClassVar[Mapping[str, tuple[str, ...]]] = {f"{kind}{name}": has for kind in ("Roberta", "XLMRoberta") for name, has in HEADS.items()}
    names: ClassVar[Names] = {
        **TRUNK,
        "pooler.dense": "pooler.dense",
        "heads.words.dense": "lm_head.dense",
        "heads.words.norm": "lm_head.layer_norm",
        "heads.words.decoder.weight": "lm_head.decoder.weight",
        "heads.words.decoder.bias": "lm_head.bias",
        "heads.classify.dense": "classifier.dense",
        "heads.classify.out": "classifier.out_proj",
        "heads.tag.out": "classifier",
        "heads.spans.out": "qa_outputs",
        "heads.choice.out": "classifier",
    }
    aliases: ClassVar[Mapping[str, str]] = {"lm_head.decoder.bias": "lm_head.bias"}
    buffers: ClassVar[tuple[str, ...]] = BUFFERS

    def read(self, config: Mapping[str, Any]) -> ModelConfig:
        words, encoder = words_of(config, padding=1), encoder_of(config)
        first = words.padding + 1  # positions are counted on from the padding's id
        if words.positions <= first:
            raise UserError(f"config.json says max_position_embeddings is {words.positions}, of which {first} are never used; copy it again from where it came")
        return ModelConfig(
            "roberta",
            replace(words, positions=words.positions - first, first=first),
            encoder,
            tied=flag(config, "tie_word_embeddings", True),
            head_dropout=part(config, "classifier_dropout", encoder.dropout),
            details=XLM if config.get("model_type") == "xlm-roberta" else (),
        )

    def recognises(self, config: Mapping[str, Any]) -> bool:
        bare = "type_vocab_size" in config and not {"architectures", "embedding_size"} & set(config)
        return super().recognises(config) or (bare and counts_on(config))

    def write(self, config: ModelConfig) -> dict[str, Any]:
        heads = {"classifier_dropout": config.head_dropout, "tie_word_embeddings": config.tied}
        return {"model_type": config.detail("model_type", "roberta"), **words_said(config.embed), **encoder_said(config.encoder), **heads}

    def architecture(self, config: ModelConfig) -> str:
        name = super().architecture(config)
        return f"XLM{name}" if config.detail("model_type") else name

    def head(self, name: str, config: ModelConfig, labels: int) -> nn.Module:
        words, encoder, drop = config.embed, config.encoder, config.head_dropout
        assert isinstance(words, TextConfig)
        assert isinstance(encoder, EncoderConfig)
        if name == "words":
            return heads.Words(encoder.width, encoder.width, words.vocabulary, "gelu", encoder.epsilon)
        if name == "classify":
            return heads.Dense(encoder.width, labels, "texts", "tanh", (drop, drop))
        over: dict[str, heads.Over] = {"choice": "pooled", "tag": "tokens", "spans": "tokens"}
        return heads.Linear(encoder.width, labels, over[name], 0.0 if name == "spans" else drop)
