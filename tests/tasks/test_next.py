"""Next sentence: what transformers' BertForNextSentencePrediction says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

import unmask
from conftest import sentences
from models import make_varied

PAIRS = [
    *zip(sentences(12, seed=1), sentences(12, seed=2), strict=True),
    ("", "only the second"),
    ("서울은 한국의 수도", "😀 Café!"),
    ("the cat " * 50, "a dog " * 50),  # cut to the model's length
]


def test_the_answers_are_theirs(tmp_path: Path, vocabulary: list[str]) -> None:
    reference = make_varied("BertForNextSentencePrediction", tmp_path, vocabulary)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    found = unmask.load(tmp_path).next(PAIRS)
    for (first, second), ours in zip(PAIRS, found, strict=True):
        with torch.inference_mode():
            given = tokenizer(first, second, return_tensors="pt", truncation=True, max_length=64)
            expected = reference(**given).logits.softmax(-1)[0, 0].item()  # column 0: it follows
        assert ours.score == pytest.approx(expected, abs=1e-5)
        assert ours.follows == (expected >= 0.5)
    assert {one.follows for one in found} == {True, False}, "a test that cannot tell the columns apart"


def test_one_text_is_no_pair(tmp_path: Path) -> None:
    make_varied("BertForNextSentencePrediction", tmp_path)
    with pytest.raises(unmask.UserError, match=r"^input 1 is a text; a pair of texts"):
        unmask.load(tmp_path).next("alone")
