"""Embedding with prompts: what sentence-transformers says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

import unmask
from conftest import sentences
from models import Case, make
from unmask.errors import UserError

TEXTS = [*sentences(6, longest=70), "", "서울 😀 Café", "x"]
PROMPTS = {"query": "Represent this question for searching: ", "document": "Passage: ", "empty": ""}


def theirs(folder: Path, vocabulary: list[str], *, mode: str = "mean", include: bool = True, default: str | None = None) -> SentenceTransformer:
    """A random BERT of theirs, saved as they save it in folder/st."""
    make(Case("bert", "BertModel", ()), folder / "bert", pieces=vocabulary)
    modules = [Transformer(str(folder / "bert"), max_seq_length=64), Pooling(48, pooling_mode=mode, include_prompt=include)]
    model = SentenceTransformer(modules=modules, prompts=PROMPTS, default_prompt_name=default, device="cpu")
    model.save(str(folder / "st"), create_model_card=False)
    return model


def far(one: Any, two: Any) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(two)).max())


@pytest.mark.parametrize("include", [True, False], ids=["prompt counts", "prompt left out"])
@pytest.mark.parametrize("mode", ["mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"])
def test_prompts(tmp_path: Path, vocabulary: list[str], mode: str, include: bool) -> None:
    """Each named prompt stands before the text; where the folder says so, it is read but not pooled."""
    reference = theirs(tmp_path, vocabulary, mode=mode, include=include)
    model = unmask.load(tmp_path / "st")
    plain = model.embed(TEXTS)
    assert far(plain, reference.encode(TEXTS)) <= 1e-5
    for name in PROMPTS:
        found = model.embed(TEXTS, prompt=name)
        assert far(found, reference.encode(TEXTS, prompt_name=name)) <= 1e-5
        assert (far(found, plain) > 1e-2) == (name != "empty")


def test_the_folders_own_prompt_and_none(tmp_path: Path, vocabulary: list[str]) -> None:
    reference = theirs(tmp_path, vocabulary, default="query")
    model = unmask.load(tmp_path / "st")
    assert far(model.embed(TEXTS), reference.encode(TEXTS)) <= 1e-5
    assert far(model.embed(TEXTS), reference.encode(TEXTS, prompt_name="query")) <= 1e-5
    assert far(model.embed(TEXTS, prompt="document"), reference.encode(TEXTS, prompt_name="document")) <= 1e-5
    assert far(model.embed(TEXTS, prompt=""), reference.encode(TEXTS, prompt="")) <= 1e-5
    assert far(model.embed(TEXTS, prompt=""), model.embed(TEXTS)) > 1e-2


@pytest.mark.parametrize("words", [61, 62, 200])
def test_a_prompt_that_leaves_no_room_is_told(tmp_path: Path, vocabulary: list[str], words: int) -> None:
    """All texts would get one vector, or with the prompt left out none."""
    make(Case("bert", "BertModel", ()), tmp_path, pieces=vocabulary)
    (tmp_path / "task.json").write_text(json.dumps({"prompts": {"long": "the " * words}, "include_prompt": False}))
    model = unmask.load(tmp_path)
    if words == 61:  # 64 pieces, less [CLS], [SEP] and the prompt's: one of the text's own
        assert far(model.embed("cat", prompt="long"), model.embed("dog", prompt="long")) > 1e-2
        return
    with pytest.raises(UserError, match=rf"^the prompt takes {words + 1} of the model's 64 pieces and leaves no room for a text; use a shorter one$"):
        model.embed("cat", prompt="long")


def test_lowercased_before_the_tokenizer_the_prompt_too(tmp_path: Path, vocabulary: list[str]) -> None:
    """A cased tokenizer makes other pieces of a capital letter, and another number of them would be left out of the mean."""
    make(Case("bert", "BertModel", ()), tmp_path, pieces=vocabulary)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    for name, lowercase in (("upper", True), ("plain", False)):
        (tmp_path / "task.json").write_text(
            json.dumps({"prompts": {"p": "EMBEDDINGS of: " if lowercase else "embeddings of: "}, "include_prompt": False, "lowercase": lowercase})
        )
        found = unmask.load(tmp_path).embed(["The Cat" if lowercase else "the cat"], prompt="p")
        if name == "upper":
            upper = found
    assert far(upper, found) <= 1e-6


def test_prompts_that_are_not_there(tmp_path: Path, vocabulary: list[str], minilm: Path) -> None:
    theirs(tmp_path, vocabulary)
    with pytest.raises(UserError, match=r"^the model has no prompt 'qury', did you mean query\?$"):
        unmask.load(tmp_path / "st").embed("x", prompt="qury")
    with pytest.raises(UserError, match=r"^the model has no prompt 'query' nor any other; leave it out$"):
        unmask.load(minilm).embed("x", prompt="query")


def test_shapes(minilm: Path) -> None:
    model = unmask.load(minilm)
    assert model.embed("one").shape == (384,)
    assert model.embed(["one"]).shape == (1, 384)
    assert model.embed([]).shape == (0, 384)
    assert model.embed(["one", "two"]).dtype == np.float32
