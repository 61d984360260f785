"""Multiple choice: what transformers' classes for it say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import unmask
from conftest import sentences
from models import Case, make

FAMILIES = {"bert": "Bert", "roberta": "Roberta", "electra": "Electra", "albert": "Albert", "distilbert": "DistilBert", "modernbert": "ModernBert"}
ASKED: list[tuple[str, list[str]]] = [
    *((prompt, sentences(2 + i % 4, seed=i)) for i, prompt in enumerate(sentences(12, seed=1))),
    ("", ["", "only an ending"]),
    ("서울은 한국의 수도", ["😀 Café!", "one", "one"]),
    ("the cat " * 50, ["a dog " * 50, "a dog", "a"]),  # cut to the model's length
    ("alone", ["the only one"]),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_choices_are_theirs(family: str, tmp_path: Path, vocabulary: list[str]) -> None:
    reference = make(Case(family, f"{FAMILIES[family]}ForMultipleChoice", ()), tmp_path, pieces=vocabulary)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", "model_max_length": 64}))
    tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path)
    takes = {"input_ids", "attention_mask", *(["token_type_ids"] if family in ("bert", "electra", "albert") else [])}
    model = unmask.load(tmp_path)
    assert model.task == "choice"
    found, chosen = model.choose(ASKED), set()
    for (prompt, endings), ours in zip(ASKED, found, strict=True):
        given: Any = tokenizer([prompt] * len(endings), endings, return_tensors="pt", truncation=True, max_length=64, padding=True)
        with torch.inference_mode():
            expected = reference(**{name: one[None] for name, one in given.items() if name in takes}).logits.softmax(-1)[0]
        assert ours.scores == pytest.approx(expected.tolist(), abs=1e-5)
        assert (ours.ending, ours.score) == (endings[ours.number], max(ours.scores))
        chosen.add(ours.number)
    assert len(chosen) > 2, "a test that cannot tell the endings apart"
    assert model.choose(ASKED[0]).scores == pytest.approx(found[0].scores, abs=1e-5)
    assert str(found[-1]) == "the only one 1.000"


@pytest.mark.parametrize(
    ("given", "kind"), [("a", "a text"), (("a", "b"), "a pair of texts"), ([("a", [])], "of type tuple"), ([("a", ["b", 3])], "of type tuple")]
)
def test_what_is_no_choice_is_told(given: Any, kind: str, tmp_path: Path) -> None:
    make(Case("bert", "BertForMultipleChoice", ()), tmp_path)
    with pytest.raises(unmask.UserError, match=rf"^input 1 is {kind}; a prompt and a list of its endings \(a tuple\) is asked for$"):
        unmask.load(tmp_path).choose(given)


def test_other_tasks_take_no_list_of_endings(tmp_path: Path) -> None:
    make(Case("bert", "BertModel", ()), tmp_path)
    with pytest.raises(unmask.UserError, match=r"^input 1 is a prompt and a list of its endings; a text is asked for$"):
        unmask.load(tmp_path).embed(("a", ["b", "c"]))
