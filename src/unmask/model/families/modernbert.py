"""ModernBERT (Warner et al. 2024): pre-norm, rotary positions with two bases, windows of near tokens in two layers of three, GeGLU, no biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from torch import nn

from unmask.errors import UserError
from unmask.model import heads
from unmask.model.embed import TextConfig
from unmask.model.encoder import EncoderConfig
from unmask.model.families.base import Family, Names, flag, part, text, whole
from unmask.model.layout import FULL, local
from unmask.model.model import ModelConfig

T = TypeVar("T")
BASES = {"full_attention": 160_000.0, "sliding_attention": 10_000.0}
PLAIN = {"norm": "pre", "gated": True, "first_norm": False, "norm_bias": False, "attention_bias": False, "output_bias": False, "feed_bias": False}


def _shape(depth: int, width: int, heads: int, hidden: int) -> ModelConfig:
    near, bases = local(64), (BASES["full_attention"], BASES["sliding_attention"], BASES["sliding_attention"])
    encoder = EncoderConfig(width, depth, heads, hidden, epsilon=1e-5, rotary=bases, reach=(FULL, near, near), **PLAIN)  # type: ignore[arg-type]
    words = TextConfig(50_368, positions=8192, segments=0, kind="none", norm_bias=False, epsilon=1e-5, padding=50_283)
    return ModelConfig("modernbert", words, encoder, pooler=False)


class ModernBert(Family):
    shapes: ClassVar[Mapping[str, ModelConfig]] = {"base": _shape(22, 768, 12, 1152), "large": _shape(28, 1024, 16, 2624)}
    prefix: ClassVar[str] = "model."
    architectures: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "ModernBertModel": (),
        "ModernBertForMaskedLM": ("words",),
        "ModernBertForSequenceClassification": ("classify",),
        "ModernBertForTokenClassification": ("tag",),
        "ModernBertForQuestionAnswering": ("spans",),
        "ModernBertForMultipleChoice": ("choice",),
    }
    names: ClassVar[Names] = {
        "embed.words": "embeddings.tok_embeddings",
        "embed.norm": "embeddings.norm",
        "encoder.layers.{}.attention.qkv": "layers.{}.attn.Wqkv",
        "encoder.layers.{}.attention.out": "layers.{}.attn.Wo",
        "encoder.layers.{}.attention_norm": "layers.{}.attn_norm",
        "encoder.layers.{}.feed.up": "layers.{}.mlp.Wi",
        "encoder.layers.{}.feed.down": "layers.{}.mlp.Wo",
        "encoder.layers.{}.feed_norm": "layers.{}.mlp_norm",
        "encoder.norm": "final_norm",
        **{f"heads.{head}.dense": "head.dense" for head in ("words", "classify", "tag", "spans", "choice")},
        **{f"heads.{head}.norm": "head.norm" for head in ("words", "classify", "tag", "spans", "choice")},
        **{f"heads.{head}.out": "classifier" for head in ("classify", "tag", "spans", "choice")},
        "heads.words.decoder": "decoder",
    }
    known_by: ClassVar[Mapping[str, str]] = {"words": "heads.words.decoder.bias"}  # the dense layer before it is in every head

    def read(self, config: Mapping[str, Any]) -> ModelConfig:
        if not flag(config, "decoder_bias", True):
            raise UserError(
                "config.json says decoder_bias is false, and such a word head is not known here; load it in transformers and save it with a bias of zeros"
            )
        width, depth = whole(config, "hidden_size", 768), whole(config, "num_hidden_layers", 22)
        kinds, epsilon, padding = _kinds(config, depth), part(config, "norm_eps", 1e-5), config.get("pad_token_id")
        reaches = {"full_attention": FULL, "sliding_attention": local(whole(config, "local_attention", 128) // 2)}
        bias, norm_bias = flag(config, "attention_bias", False), flag(config, "norm_bias", False)
        return ModelConfig(
            "modernbert",
            TextConfig(
                vocabulary=whole(config, "vocab_size", 50_368),
                positions=whole(config, "max_position_embeddings", 8192),
                segments=0,
                kind="none",
                norm_bias=norm_bias,
                epsilon=epsilon,
                dropout=part(config, "embedding_dropout", 0.0),
                padding=padding if type(padding) is int and padding >= 0 else 0,
            ),
            EncoderConfig(
                width,
                depth,
                heads=whole(config, "num_attention_heads", 12),
                hidden=whole(config, "intermediate_size", 1152),
                norm="pre",
                epsilon=epsilon,
                activation=text(config, "hidden_activation", "gelu"),
                gated=True,
                rotary=tuple(_base(config, kind) for kind in kinds),
                reach=tuple(reaches[kind] for kind in kinds),
                first_norm=False,
                norm_bias=norm_bias,
                attention_bias=bias,
                output_bias=bias,
                feed_bias=flag(config, "mlp_bias", False),
                dropout=part(config, "mlp_dropout", 0.0),
                attention_dropout=part(config, "attention_dropout", 0.0),
            ),
            pooler=False,
            tied=flag(config, "tie_word_embeddings", True),
            head_dropout=part(config, "classifier_dropout", 0.0),
            details=_details(config),
        )

    def write(self, config: ModelConfig) -> dict[str, Any]:
        words, encoder = config.embed, config.encoder
        assert isinstance(words, TextConfig)
        assert isinstance(encoder, EncoderConfig)
        near = [reach for reach in encoder.reach if reach != FULL]
        kinds = ["full_attention" if encoder.reach[i % len(encoder.reach)] == FULL else "sliding_attention" for i in range(encoder.depth)]
        bases = BASES | {kinds[i]: encoder.rotary[i % len(encoder.rotary)] for i in range(encoder.depth)}
        return {
            "model_type": "modernbert",
            "vocab_size": words.vocabulary,
            "max_position_embeddings": words.positions,
            "pad_token_id": words.padding,
            "embedding_dropout": words.dropout,
            "hidden_size": encoder.width,
            "num_hidden_layers": encoder.depth,
            "num_attention_heads": encoder.heads,
            "intermediate_size": encoder.hidden,
            "hidden_activation": encoder.activation,
            "norm_eps": encoder.epsilon,
            "norm_bias": encoder.norm_bias,
            "attention_bias": encoder.attention_bias,
            "mlp_bias": encoder.feed_bias,
            "mlp_dropout": encoder.dropout,
            "attention_dropout": encoder.attention_dropout,
            "layer_types": kinds,
            "local_attention": 2 * near[0][0] if near else 128,
            "rope_parameters": {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()},
            "global_rope_theta": bases["full_attention"],  # this and the next two for transformers before 5
            "local_rope_theta": bases["sliding_attention"],
            "global_attn_every_n_layers": len(encoder.reach),
            "tie_word_embeddings": config.tied,
            "classifier_dropout": config.head_dropout,
            "decoder_bias": True,
            **{name: config.detail(name, usual) for name, usual in DETAILS.items()},
        }

    def head(self, name: str, config: ModelConfig, labels: int) -> nn.Module:
        words, encoder = config.embed, config.encoder
        assert isinstance(words, TextConfig)
        assert isinstance(encoder, EncoderConfig)
        width, norm_bias = encoder.width, encoder.norm_bias
        bias, activation = config.detail("classifier_bias", False), config.detail("classifier_activation", "gelu")
        if name == "words":
            return heads.Words(width, width, words.vocabulary, activation, encoder.epsilon, bias=bias, norm_bias=norm_bias)
        over: dict[str, heads.Over] = {"classify": "texts", "choice": "texts", "tag": "tokens", "spans": "tokens"}
        norm = nn.LayerNorm(width, eps=encoder.epsilon, bias=norm_bias)
        mean = config.detail("classifier_pooling") == "mean"
        return heads.Dense(width, labels, over[name], activation, (0.0, config.head_dropout), norm, bias, mean)


DETAILS = {"classifier_pooling": "cls", "classifier_activation": "gelu", "classifier_bias": False}


def _details(config: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """What its heads read, where it is not the usual."""
    found = {
        "classifier_pooling": text(config, "classifier_pooling", "cls"),
        "classifier_activation": text(config, "classifier_activation", "gelu"),
        "classifier_bias": flag(config, "classifier_bias", False),
    }
    if found["classifier_pooling"] not in ("cls", "mean"):
        raise UserError(f"config.json pools a text by {found['classifier_pooling']!r}; known are 'cls' and 'mean'")
    return tuple((name, value) for name, value in found.items() if value != DETAILS[name])


def _kinds(config: Mapping[str, Any], depth: int) -> Sequence[str]:
    """How far the layers see, as far as the pattern goes before it begins anew."""
    said = config.get("layer_types")
    if said is None:
        every = min(whole(config, "global_attn_every_n_layers", 3), depth)
        return ["full_attention", *["sliding_attention"] * (every - 1)]
    if not isinstance(said, list) or len(said) != depth or not all(kind in BASES for kind in said):
        raise UserError(f"config.json should say layer_types for its {depth} layers, each {' or '.join(BASES)}; copy it again from where it came")
    return next(said[:size] for size in range(1, depth + 1) if all(kind == said[i % size] for i, kind in enumerate(said)))


def _base(config: Mapping[str, Any], kind: str) -> float:
    """The base of the rotary positions of such layers: transformers 5 says it in one way, 4 in another."""
    older = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}[kind]
    rope = config.get("rope_parameters")
    said = (rope.get(kind) if isinstance(rope, dict) else None) or {}
    if not isinstance(said, dict) or said.get("rope_type", "default") != "default":
        raise UserError(f"config.json stretches its rotary positions ({said}), which is not known here; only rope_type 'default' is")
    base = said.get("rope_theta", config.get(older))
    base = BASES[kind] if base is None else base
    if type(base) not in (int, float) or not 1 < base < 1e12:
        raise UserError(f"config.json says the base of rotary positions is {base!r}, it should be a number above 1; copy it again from where it came")
    return float(base)
