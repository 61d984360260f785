"""Filling masks: what transformers' pipeline says, and the text with the guesses put where the masks stood."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import unmask
from models import Case, make
from unmask.errors import UserError
from unmask.tasks.fill import Filled

CASE = Case("bert", "BertForMaskedLM", ("words",))
TEXTS = [
    "The capital of France is [MASK].",
    "[MASK]",
    "a [MASK] and another [MASK], then [MASK]!",
    "Café [MASK] 서울은 [MASK]의 수도 😀 [MASK]",
    "glued[MASK]glued",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, vocabulary: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("fill")
    make(CASE, folder, pieces=vocabulary)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> unmask.Predictor:
    return unmask.load(folder)


def always(folder: Path, vocabulary: list[str], piece: str, **files: Any) -> unmask.Predictor:
    """A model that puts one piece in every mask."""
    reference: Any = make(CASE, folder, pieces=vocabulary)
    with torch.no_grad():
        reference.cls.predictions.bias[vocabulary.index(piece)] = 1000
    reference.save_pretrained(folder)
    for name, found in files.items():
        (folder / f"{name}.json").write_text(json.dumps(found))
    return unmask.load(folder)


def test_the_guesses_are_the_pipelines(folder: Path, model: unmask.Predictor) -> None:
    pipeline = transformers.pipeline("fill-mask", model=str(folder), top_k=7)
    for text, ours in zip(TEXTS, model.fill(TEXTS, top=7), strict=True):
        theirs = pipeline(text)
        theirs = [theirs] if isinstance(theirs[0], dict) else theirs
        assert len(ours.masks) == text.count("[MASK]") == len(theirs)
        for mask, expected in zip(ours.masks, theirs, strict=True):
            assert [guess.piece for guess in mask] == [one["token_str"] for one in expected]
            assert [guess.score for guess in mask] == pytest.approx([one["score"] for one in expected], abs=1e-5)


def test_pairs(folder: Path, model: unmask.Predictor) -> None:
    """The second text's own mask is put into the second text."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    reference = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    given = tokenizer("one [MASK]", "two [MASK] and", return_tensors="pt")
    with torch.inference_mode():
        chances = reference(**given).logits[given["input_ids"] == tokenizer.mask_token_id].softmax(-1)
    found = model.fill(("one [MASK]", "two [MASK] and"))
    for mask, expected in zip(found.masks, chances, strict=True):
        best = expected.topk(5)
        assert [guess.piece for guess in mask] == tokenizer.convert_ids_to_tokens(best.indices.tolist())
        assert [guess.score for guess in mask] == pytest.approx(best.values.tolist(), abs=1e-5)
    pieces = [mask[0].piece for mask in found.masks]
    assert not any(piece.startswith("##") for piece in pieces)
    assert found.text == f"one {pieces[0]}\ttwo {pieces[1]} and"


@pytest.mark.parametrize(
    ("piece", "text", "filled"),
    [
        ("dog", "The [MASK] ran.", "The dog ran."),
        ("dog", "CAFÉ Ünï [MASK], 😀 [MASK]!", "CAFÉ Ünï dog, 😀 dog!"),
        ("dog", "서울은 [MASK]의 수도", "서울은 dog의 수도"),
        ("dog", "e\u0301t\x00e [MASK]\u200b x", "e\u0301t\x00e dog\u200b x"),
        ("dog", "no[MASK]space", "nodogspace"),
        ("dog", "[MASK][MASK]", "dogdog"),
        ("dog", "  two  [MASK]  spaces  ", "  two  dog  spaces  "),
        ("##ing", "we are go [MASK] home", "we are going home"),
        ("##ing", "go[MASK] [MASK] on", "goinging on"),
        ("##ing", "[MASK] first", "ing first"),
    ],
)
def test_the_text_keeps_all_but_the_masks(tmp_path: Path, vocabulary: list[str], piece: str, text: str, filled: str) -> None:
    found = always(tmp_path, vocabulary, piece).fill(text)
    assert {mask[0].piece for mask in found.masks} == {piece}
    assert found.text == filled


def test_a_mask_that_counts_its_space_leaves_it_there(tmp_path: Path, vocabulary: list[str], minilm: Path) -> None:
    """Some tokenizers take the space before the mask for a part of it (lstrip)."""
    settings = json.loads((minilm / "tokenizer.json").read_text())
    for token in settings["added_tokens"]:
        token["lstrip"] = token["content"] == "[MASK]"
    model = always(tmp_path, vocabulary, "dog", tokenizer=settings)
    assert model.tokenizer is not None
    assert model.tokenizer.encode(["the [MASK]"], offsets=True)[0].offsets[2] == (3, 10), "the case that is meant"
    assert model.fill("the [MASK] ran").text == "the dog ran"


def test_top(model: unmask.Predictor, vocabulary: list[str]) -> None:
    assert len(model.fill("[MASK]").masks[0]) == 5
    assert len(model.fill("[MASK]", top=1).masks[0]) == 1
    every = model.fill("[MASK]", top=10**6).masks[0]
    assert {guess.piece for guess in every} == set(vocabulary)
    assert sum(guess.score for guess in every) == pytest.approx(1, abs=1e-4)
    assert [guess.score for guess in every] == sorted((guess.score for guess in every), reverse=True)
    for wrong in (0, -1, 2.5, "many"):
        with pytest.raises(unmask.UserError, match=r"^top is .*; give a whole number, 1 or more$"):
            model.fill("[MASK]", top=wrong)  # type: ignore[arg-type]


def test_what_has_no_mask_is_told(model: unmask.Predictor) -> None:
    with pytest.raises(unmask.UserError, match=r"'no mask here' has no \[MASK\] in it; put one"):
        model.fill(["a [MASK]", "no mask here"])
    with pytest.raises(unmask.UserError, match=r"'' has no \[MASK\] in it"):
        model.fill("")


@pytest.mark.parametrize(
    ("given", "lost"),
    [
        ("the " * 70 + "[MASK]", 1),
        ("[MASK] " + "the " * 70 + "[MASK]", 1),
        (("the " * 70 + "[MASK]", "[MASK] " + "a " * 70 + "[MASK] [MASK]"), 3),
    ],
    ids=["alone", "one of two", "a pair"],
)
def test_a_mask_beyond_the_length_is_told_not_dropped(model: unmask.Predictor, given: Any, lost: int) -> None:
    with pytest.raises(unmask.UserError, match=rf"^{lost} \[MASK\] of '.*…' stand beyond the model's 64 pieces; shorten the text$"):
        model.fill(given)


def test_the_last_mask_that_fits(model: unmask.Predictor) -> None:
    assert len(model.fill("the " * 61 + "[MASK]" + " the" * 70).masks) == 1


def test_json(model: unmask.Predictor) -> None:
    found: Filled = model.fill("a [MASK] b [MASK]", top=2)
    plain = json.loads(json.dumps(found.json()))
    assert plain["text"] == found.text
    assert [[set(guess) for guess in mask] for mask in plain["masks"]] == [[{"piece", "score"}] * 2] * 2


def test_another_name_for_the_mask(tmp_path: Path, vocabulary: list[str]) -> None:
    make(CASE, tmp_path, pieces=vocabulary)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"mask_token": "[unused5]"}))
    model = unmask.load(tmp_path)
    assert len(model.fill("a [unused5]").masks) == 1
    with pytest.raises(unmask.UserError, match=r"has no \[unused5\]"):
        model.fill("a [MASK]")
    shutil.rmtree(tmp_path)


def test_a_model_that_reads_left_to_right_fills_no_masks(tmp_path: Path, vocabulary: list[str]) -> None:
    """Its word head says which piece comes next."""
    make(Case("bert", "BertLMHeadModel", ("words",), {"is_decoder": True}), tmp_path / "left", pieces=vocabulary)
    with pytest.raises(UserError, match="this model reads left to right, and its word head says which piece comes next"):
        unmask.load(tmp_path / "left").fill("a [MASK] b")
