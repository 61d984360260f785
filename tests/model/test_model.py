"""Whole models: their published sizes, how they start, what is tied."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from unmask.model import families
from unmask.model.embed import ImageConfig, TextConfig
from unmask.model.encoder import EncoderConfig
from unmask.model.layout import Packed, Padded
from unmask.model.model import Model, ModelConfig, initialise, parameters

TEXT = ModelConfig("bert", TextConfig(2_000, positions=64), EncoderConfig(64, 2, 2, 256), (("words", 2_000), ("next", 2), ("classify", 3)))
PICTURE = ModelConfig("vit", ImageConfig((64, 64), 8), EncoderConfig(64, 2, 2, 256, norm="pre"), (("classify", 5),), pooler=False)
MODERN = replace(TEXT, encoder=EncoderConfig(64, 2, 2, 96, norm="pre", gated=True, rotary=(1e4,), distinct=1, attention_gate=True, query_key_norm=True))
START = pytest.mark.parametrize("config", [TEXT, PICTURE, MODERN], ids=["bert", "vit", "modern"])

PUBLISHED = {
    # Devlin et al. 2018 say 110M and 340M; to the digit, these are the released checkpoints with their pooler.
    ("bert.base", None): 109_482_240,
    ("bert.large", None): 335_141_888,
    # Turc et al. 2019, table 1: 4.4, 11.3, 29.1 and 41.7 million.
    ("bert.tiny", None): 4_385_920,
    ("bert.mini", None): 11_170_560,
    ("bert.small", None): 28_763_648,
    ("bert.medium", None): 41_373_184,
    # timm's counts, heads of 1,000 labels included.
    ("vit.tiny", 1000): 5_717_416,
    ("deit.tiny", 1000): 5_910_800,
    ("deit.small", 1000): 22_436_432,
    ("deit.base", 1000): 87_338_192,
    ("deit.base384", 1000): 87_630_032,
    ("vit.small", 1000): 22_050_664,
    ("vit.base", 1000): 86_567_656,
    ("vit.base32", 1000): 88_224_232,
    ("vit.large", 1000): 304_326_632,
    ("vit.large32", 1000): 306_535_400,
    ("vit.huge", 1000): 632_045_800,
    # torchvision's.
    ("resnet.18", 1000): 11_689_512,
    ("resnet.34", 1000): 21_797_672,
    ("resnet.50", 1000): 25_557_032,
    ("resnet.101", 1000): 44_549_160,
    ("resnet.152", 1000): 60_192_808,
    # The released checkpoints, with a pooler where the trunk has one. Papers say: RoBERTa 125M and 355M, XLM-R 270M and 550M, KLUE's 68M, 110M and 337M,
    ("roberta.base", None): 124_645_632,
    ("roberta.large", None): 355_359_744,
    ("roberta.xlm_base", None): 278_043_648,
    ("roberta.xlm_large", None): 559_890_432,
    ("roberta.klue_small", None): 68_090_880,
    ("roberta.klue_base", None): 110_618_112,
    ("roberta.klue_large", None): 336_656_384,
    # DistilBERT 66M, ALBERT 12M, 18M, 60M and 235M, ELECTRA 14M, 110M and 335M, ModernBERT 149M and 395M.
    ("distilbert.base", None): 66_362_880,
    ("distilbert.base_cased", None): 65_190_912,
    ("distilbert.multilingual", None): 134_734_080,
    ("albert.base", None): 11_683_584,
    ("albert.large", None): 17_683_968,
    ("albert.xlarge", None): 58_724_864,
    ("albert.xxlarge", None): 222_595_584,
    ("electra.small", None): 13_483_008,
    ("electra.base", None): 108_891_648,
    ("electra.large", None): 334_092_288,
    ("electra.small_generator", None): 13_483_008,
    ("electra.base_generator", None): 33_511_168,
    ("electra.large_generator", None): 50_999_552,
    ("modernbert.base", None): 149_014_272,
    ("modernbert.large", None): 394_781_696,
    # AllenNLP's three, over 30,522 pieces in place of characters; of the cells alone 4.8M, 19.0M and 75.6M.
    ("bilm.small", None): 30_522 * 128 + 4 * (2 * 4096 * 128 + 2 * 4096 + 128 * 1024),
    ("bilm.medium", None): 30_522 * 256 + 4 * (2 * 8192 * 256 + 2 * 8192 + 256 * 2048),
    ("bilm.original", None): 30_522 * 512 + 4 * (2 * 16384 * 512 + 2 * 16384 + 512 * 4096),
    # Words, norms, and of each layer five squares (of attention and its gate, which has a bias) and the three matrices of a gated feed-forward.
    ("gated.small", None): 8_192 * 384 + (2 * 12 + 2) * 384 + 12 * (5 * 384 * 384 + 384 + 3 * 1024 * 384),
    ("gated.medium", None): 8_192 * 512 + (2 * 12 + 2) * 512 + 12 * (5 * 512 * 512 + 512 + 3 * 1408 * 512),
    ("gated.base", None): 8_192 * 768 + (2 * 12 + 2) * 768 + 12 * (5 * 768 * 768 + 768 + 3 * 2048 * 768),
}


@pytest.mark.parametrize(("name", "labels"), PUBLISHED, ids=lambda one: str(one))
def test_published_sizes(name: str, labels: int | None) -> None:
    shape = families.shape(name) if labels is None else families.shape(name).with_heads(classify=labels)
    with torch.device("meta"):
        assert parameters(families.build(shape)) == PUBLISHED[name, labels]


def test_every_shape_has_its_size_here() -> None:
    assert {name for name, _ in PUBLISHED} == {f"{family}.{size}" for family in families.names() for size in families.family(family).shapes}


def test_the_tied_matrix_is_counted_once() -> None:
    words = families.shape("bert.base").with_heads(words=30_522)
    with torch.device("meta"):
        tied, own = (parameters(families.build(replace(words, tied=tied))) for tied in (True, False))
    assert tied == 109_482_240 + 768 * 768 + 768 + 2 * 768 + 30_522
    assert own == tied + 30_522 * 768


# ---- how a model starts


@START
def test_new_is_the_same_for_the_same_seed(config: ModelConfig) -> None:
    one, same, other = (dict(families.new(config, seed).named_parameters()) for seed in (3, 3, 4))
    assert all(torch.equal(tensor, same[name]) for name, tensor in one.items())
    drawn = [name for name, tensor in one.items() if tensor.std() > 0]
    assert drawn
    assert not any(torch.equal(one[name], other[name]) for name in drawn)


def test_new_neither_reads_nor_moves_the_global_state() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    one = families.new(TEXT)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(families.new(TEXT).embed.words.weight, one.embed.words.weight)  # type: ignore[union-attr]


@START
def test_initial_statistics(config: ModelConfig) -> None:
    """Truncated normal of 0.02 cut at two deviations, whose own deviation is 0.8796 of that; biases zero, norms one."""
    factor = math.sqrt(1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2)))
    model = families.new(config)
    norms = {name for name, part in model.named_modules() if isinstance(part, nn.LayerNorm)}
    seen = set()
    for name, tensor in model.named_parameters():
        owner, _, last = name.rpartition(".")
        if owner in norms:
            assert tensor.eq(1.0 if last == "weight" else 0.0).all(), name
            seen.add("norm")
        elif last == "bias":
            assert tensor.eq(0).all(), name
            seen.add("bias")
        else:
            assert tensor.abs().max() <= 0.04, name
            spread = 5 / math.sqrt(2 * tensor.numel())  # five standard errors
            assert tensor.std().item() == pytest.approx(0.02 * factor, rel=spread), name
            assert abs(tensor.mean().item()) < 5 * 0.02 / math.sqrt(tensor.numel()), name
            seen.add("weight")
    assert seen == {"norm", "bias", "weight"}


@START
def test_the_start_leaves_no_number_as_memory_had_it(config: ModelConfig) -> None:
    model = families.build(config)
    for tensor in model.parameters():
        nn.init.constant_(tensor, math.nan)
    initialise(model, torch.Generator().manual_seed(0))
    assert not [name for name, tensor in model.named_parameters() if not tensor.isfinite().all()]


def test_deviation_is_taken() -> None:
    model = families.build(TEXT)
    initialise(model, torch.Generator().manual_seed(0), deviation=0.5)
    assert model.encoder.layers[0].feed.up.weight.std().item() == pytest.approx(0.5 * 0.8796, rel=0.05)  # type: ignore[union-attr, operator]


# ---- tying


def word_parts(model: Model) -> tuple[nn.Parameter, nn.Parameter]:
    return model.heads["words"].decoder.weight, model.embed.words.weight  # type: ignore[union-attr, return-value]


def test_the_word_head_is_the_embedding() -> None:
    decoder, words = word_parts(families.new(TEXT))
    assert decoder is words
    assert "heads.words.decoder.weight" not in dict(families.new(TEXT).named_parameters())


def test_untied_heads_have_their_own_matrix() -> None:
    model = families.new(replace(TEXT, tied=False))
    decoder, words = word_parts(model)
    assert decoder is not words
    assert not torch.equal(decoder, words)
    assert "heads.words.decoder.weight" in dict(model.named_parameters())


def test_a_tied_matrix_learns_from_both_ends() -> None:
    model = families.new(TEXT).eval()
    inputs, layout = {"tokens": torch.tensor([5, 6, 7]), "positions": torch.arange(3)}, Packed.of([3])
    model.read("words", model(inputs, layout), layout)[0, 1_500].backward()
    grad = word_parts(model)[1].grad
    assert grad is not None
    assert grad.abs().sum(1).nonzero().flatten().tolist() == [5, 6, 7, 1_500]


# ---- going through


@START
def test_packed_is_padded_and_every_head_has_its_shape(config: ModelConfig) -> None:
    model, lengths = families.new(config).eval(), [4, 4, 4]
    if config.family == "vit":
        tokens = 1 + 8 * 8
        lengths = [tokens] * 3
        inputs = {"pixels": torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))}
        pairs = [(inputs, Padded(3, tokens)), (inputs, Packed.of(lengths))]
    else:
        given = {"tokens": torch.arange(12).view(3, 4), "positions": torch.arange(4).expand(3, 4), "segments": torch.tensor([0, 0, 1, 1]).expand(3, 4)}
        pairs = [(given, Padded(3, 4)), ({name: one.flatten() for name, one in given.items()}, Packed.of(lengths))]  # type: ignore[list-item]
    found = []
    with torch.no_grad():
        for inputs, layout in pairs:
            rows = model(inputs, layout)
            logits = {head: model.read(head, rows, layout) for head, _ in config.heads}
            found.append({"rows": layout.tokens(rows)} | {head: layout.tokens(out) if head == "words" else out for head, out in logits.items()})
    for head, labels in config.heads:
        assert found[0][head].shape == (sum(lengths) if head == "words" else 3, labels)
    assert all((found[0][name] - found[1][name]).abs().max() < 1e-5 for name in found[0])


def test_a_head_over_texts_brings_its_pooler() -> None:
    bare = replace(TEXT, pooler=False)
    assert families.build(replace(bare, heads=(("words", 2_000),))).pooler is None
    assert families.build(bare).pooler is not None


def test_the_longest_sequence() -> None:
    assert TEXT.longest == 64
    assert PICTURE.longest is None
    assert replace(TEXT, embed=TextConfig(10, positions=8192, kind="none")).longest == 8192, "rotary positions go on, but it was trained on so many"
    assert replace(TEXT, embed=TextConfig(10, kind="sinusoidal")).longest is None
