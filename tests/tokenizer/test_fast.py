"""Bare ids, exactly those of tokenizers, and its own when the quick one differs."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpora
from unmask.tokenizer import Tokenizer
from unmask.tokenizer.fast import EVERY, FIRST, Encoder

HARD = ["", " ", "é́à 한국어 문장입니다. 日本語", "a" * 300, "[MASK] [SEP] x", "tab\tand\x0bfeed\x00nul", "\ud800 lone", "👩‍👩‍👧 ﬁ İstanbul ΑΣ", "don't—stop…"]


@pytest.fixture(scope="module")
def tokenizer(minilm: Path) -> Tokenizer:
    return Tokenizer.load(minilm)


def expected(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [tokenizer.rust.encode(text.replace("\ud800", "\ufffd"), add_special_tokens=False).ids for text in texts]


@pytest.mark.parametrize("fast", [True, False])
def test_ids_are_those_of_tokenizers(tokenizer: Tokenizer, fast: bool) -> None:
    texts = HARD + corpora.documents(200)
    encoder = Encoder(tokenizer, fast=fast)
    ids, bounds = encoder.encode(texts)
    assert encoder.name == ("nanotoken" if fast else "tokenizers"), "the quick one was not even used"
    assert [ids[a:b].tolist() for a, b in itertools.pairwise(bounds)] == expected(tokenizer, texts)
    assert encoder.encode([])[1].tolist() == [0]


class Wrong:
    """A quick one that is wrong from some text on."""

    def __init__(self, quick: Any, first: int) -> None:
        self.quick, self.first = quick, first

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> Any:
        found = self.quick.encode_batch(texts, add_special_tokens=add_special_tokens)
        if len(texts) > self.first:
            found.ids[found.offsets[self.first] :] = 0
        return found


@pytest.mark.parametrize("first", [0, FIRST - 1, FIRST + EVERY])
def test_another_id_and_it_serves_no_more(tokenizer: Tokenizer, first: int) -> None:
    texts = ["some words here"] * (FIRST + 3 * EVERY)
    encoder = Encoder(tokenizer)
    encoder.quick = Wrong(encoder.quick, first)
    with pytest.warns(UserWarning, match="nanotoken gives other ids"):
        ids, bounds = encoder.encode(texts)
    assert np.array_equal(ids, np.tile(expected(tokenizer, texts[:1])[0], len(texts)))
    assert bounds[-1] == len(ids)
    assert encoder.name == "tokenizers"


def test_a_tokenizer_that_it_cannot_read(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Rust
    from tokenizers import models, pre_tokenizers

    rust = Rust(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    encoder = Encoder(Tokenizer(rust, {}))
    assert encoder.name == "tokenizers"
    assert encoder.encode(["a b", "b"])[0].tolist() == [0, 1, 1]
    assert not encoder.wordpiece
