"""Tagging: what transformers' pipeline says of short texts, what a plain loop over windows says of long ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import unmask
from conftest import sentences
from models import make_varied
from tasks.test_spans import byte_level
from unmask.tasks.tagging import Entity, Word, entities, marks

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TEXTS = [
    "Angela Merkel visited Seoul-Busan, unbelievably reconstructive!",
    "Crème brûlée in the Café, naïve São Paulo",
    "U.S. forces (and O'Neill's dog) flew to 東京 at 5.30 p.m.",
    "unknown 😀 emoji 😀😀 here",
    *sentences(30, seed=5),
]


def shape(labels: Sequence[str]) -> dict[str, Any]:
    return {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, vocabulary: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("tagging")
    make_varied("BertForTokenClassification", folder, vocabulary, **shape(LABELS))
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> unmask.Predictor:
    return unmask.load(folder)


def flat(found: Sequence[Entity]) -> list[tuple[str, int, int]]:
    return [(one.label, one.start, one.end) for one in found]


# ---- short texts


def test_the_entities_are_the_pipelines(folder: Path, model: unmask.Predictor) -> None:
    pipeline = transformers.pipeline("token-classification", model=str(folder), aggregation_strategy="first")
    kinds = set()
    for text, ours in zip(TEXTS, model.tag(TEXTS), strict=True):
        theirs = pipeline(text)
        assert flat(ours) == [(one["entity_group"], one["start"], one["end"]) for one in theirs]
        assert [one.score for one in ours] == pytest.approx([float(one["score"]) for one in theirs], abs=1e-5)
        assert all(one.text == text[one.start : one.end] for one in ours)
        kinds |= {one.label for one in ours} | {"long" for one in ours if " " in one.text}
    assert kinds == {"PER", "LOC", "long"}, "a test that saw only part"


def test_where_the_pipeline_joins_and_cuts_words_ours_do_not(tmp_path: Path, vocabulary: list[str]) -> None:
    """It takes a piece for a word's later part where the piece has fewer letters than its characters, as of a decomposed é; and drops a last mark."""
    make_varied("BertForTokenClassification", tmp_path, vocabulary, **shape(["B-A", "B-B", "B-C"]))
    text = "the e\u0301te\u0301 ran past a cafe\u0301"
    pipeline = transformers.pipeline("token-classification", model=str(tmp_path), aggregation_strategy="first")
    assert [one.text for one in unmask.load(tmp_path).tag(text)] == text.split()
    assert [text[one["start"] : one["end"]] for one in pipeline(text)] == ["the e\u0301te", "ran", "past", "a", "cafe"]


@pytest.mark.parametrize("text", ["", " ", "\n\t", "\x00", "\u200b"])
def test_a_text_without_words_has_no_entities(model: unmask.Predictor, text: str) -> None:
    assert model.tag(text) == []
    assert model.tag([text, "the cat", text])[::2] == [[], []]


@pytest.mark.parametrize(
    "text",
    ["e\u0301te\u0301 Café ÀÉÎ", "한국 서울에서 봄", "😀 a😀b 👨‍👩‍👧", "nul\x00in the\x00 middle\x00", "İstanbul ﬁ ß Ⅷ", "a\u200bb\ufeffc", "\u00a0x\u3000y"],
)
def test_offsets_index_the_text_as_it_was_given(tmp_path: Path, vocabulary: list[str], text: str) -> None:
    """Everything is an entity of its own here, so that every word's place is seen."""
    make_varied("BertForTokenClassification", tmp_path, vocabulary, **shape(["B-A", "B-B", "B-C"]))
    model = unmask.load(tmp_path)
    found = model.tag(text)
    assert found
    encoding = model.tokenizer.encode([text], offsets=True)[0]  # type: ignore[union-attr]
    assert len(found) == len({word for word in encoding.word_ids if word is not None})
    end = 0
    for one in found:
        assert end <= one.start < one.end <= len(text)
        assert one.text == text[one.start : one.end]
        assert not one.text[0].isspace()
        assert not one.text[-1].isspace()
        end = one.end


# ---- long texts


@torch.inference_mode()
def by_hand(folder: Path, text: str, room: int, step: int) -> list[tuple[int, int, str, float]]:
    """(start, end, label, score) of every word: each window of `room` pieces run alone through transformers, in a plain loop.

    A word is taken from the window where its first piece has most pieces to its nearer side ([CLS] and [SEP] included).
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    reference: Any = transformers.AutoModelForTokenClassification.from_pretrained(folder).eval()
    whole = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ids, offsets, words = whole["input_ids"], whole["offset_mapping"], whole.word_ids()
    seen: dict[int, tuple[int, np.ndarray[Any, Any]]] = {}
    for first in range(0, len(ids), step):
        cut = ids[first : first + room]
        chances = reference(torch.tensor([[tokenizer.cls_token_id, *cut, tokenizer.sep_token_id]])).logits[0].softmax(-1).numpy()
        for i in range(len(cut)):
            context = min(i + 1, len(cut) - i)
            if first + i not in seen or context > seen[first + i][0]:
                seen[first + i] = (context, chances[i + 1])
        if first + room >= len(ids):
            break
    found = []
    for i, word in enumerate(words):
        if i == 0 or words[i - 1] != word:
            end = max(offsets[j][1] for j in range(len(words)) if words[j] == word)
            label = int(seen[i][1].argmax())
            found.append((offsets[i][0], end, reference.config.id2label[label], float(seen[i][1][label])))
    return found


LONG = {
    "words": " ".join(sentences(6, seed=7)),
    "broken words": " ".join(["unbelievably reconstructive embeddings of Schleswig-Holstein"] * 12),
    "korean": " ".join(["서울은 대한민국의 수도이다"] * 12),
    "one word": "antidisestablishmentarianism" * 40,
    "just too long": "the " * 63,
}


@pytest.mark.parametrize("windows", [None, 0, 5])
@pytest.mark.parametrize("name", LONG)
def test_a_long_text_is_read_in_windows(folder: Path, tmp_path: Path, name: str, windows: int | None) -> None:
    """62 pieces fit beside [CLS] and [SEP]; windows overlap by what the card says, 128 if nothing, by half a window at most."""
    text = LONG[name]
    loaded = unmask.load(folder)
    if windows is not None:
        object.__setattr__(loaded.card, "windows", windows)
    overlap = min(128 if windows is None else windows, 31)
    expected = by_hand(folder, text, 62, 62 - overlap)
    words = [Word(*one) for one in expected]
    found = loaded.tag(text)
    assert flat(found) == [(label, start, end) for label, start, end, _ in entities(words, marks(LABELS))]
    assert [one.score for one in found] == pytest.approx([score for *_, score in entities(words, marks(LABELS))], abs=1e-5)
    assert len(words) >= (1 if name == "one word" else 36)


def test_an_entity_across_two_windows_comes_out_whole(tmp_path: Path, vocabulary: list[str]) -> None:
    """With one label everything is one entity, however many windows it was read in."""
    make_varied("BertForTokenClassification", tmp_path, vocabulary, **shape(["PER"]))
    text = "Maximilian " * 200
    assert [(one.start, one.end, one.score) for one in unmask.load(tmp_path).tag(text)] == [(0, len(text) - 1, 1.0)]


@pytest.mark.parametrize("length", [3, 4, 5, 6])
def test_the_shortest_lengths(folder: Path, vocabulary: list[str], length: int) -> None:
    """The Rust library panics where an overlap leaves no step."""
    loaded = unmask.load(folder)
    object.__setattr__(loaded.card, "length", length)
    text = "the cat sat on a mat unbelievably"
    words = [Word(*one) for one in by_hand(folder, text, length - 2, length - 2 - (length - 2) // 2)]
    assert flat(loaded.tag(text)) == [found[:3] for found in entities(words, marks(LABELS))]


# ---- runs of labels

SCHEMES = {
    "IOB2": ("B-PER I-PER O B-LOC B-LOC I-LOC", [("PER", 0, 2), ("LOC", 3, 4), ("LOC", 4, 6)]),
    "IOB1": ("I-PER I-PER O I-LOC B-LOC I-LOC", [("PER", 0, 2), ("LOC", 3, 4), ("LOC", 4, 6)]),
    "IOBES": ("B-PER E-PER O S-LOC B-LOC I-LOC E-LOC S-LOC", [("PER", 0, 2), ("LOC", 3, 4), ("LOC", 4, 7), ("LOC", 7, 8)]),
    "IOBES, I after E": ("B-PER E-PER I-PER", [("PER", 0, 2), ("PER", 2, 3)]),
    "BILOU": ("B-PER L-PER O U-LOC B-LOC I-LOC L-LOC U-LOC", [("PER", 0, 2), ("LOC", 3, 4), ("LOC", 4, 7), ("LOC", 7, 8)]),
    "BMES": ("B-PER M-PER E-PER S-LOC", [("PER", 0, 3), ("LOC", 3, 4)]),
    "broken IOBES": ("B-LOC S-LOC I-LOC", [("LOC", 0, 1), ("LOC", 1, 2), ("LOC", 2, 3)]),
    "broken BILOU": ("I-LOC U-LOC", [("LOC", 0, 1), ("LOC", 1, 2)]),
    "bare": ("PER PER O LOC PER", [("PER", 0, 2), ("LOC", 3, 4), ("PER", 4, 5)]),
    "bare, like marks": ("E-mail E-mail O S-Bahn", [("E-mail", 0, 2), ("S-Bahn", 3, 4)]),
    "after the name": ("PER-B PER-I O LOC-B LOC-B", [("PER", 0, 2), ("LOC", 3, 4), ("LOC", 4, 5)]),
    "dashes within": ("B-ORG-CORP I-ORG-CORP I-ORG", [("ORG-CORP", 0, 2), ("ORG", 2, 3)]),
    "I of another kind": ("B-PER I-LOC I-LOC I-PER", [("PER", 0, 1), ("LOC", 1, 3), ("PER", 3, 4)]),
    "nothing": ("O O O", []),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_runs_of_labels(name: str) -> None:
    said, expected = SCHEMES[name]
    labels = said.split()
    words = [Word(i, i + 1, label, 0.5) for i, label in enumerate(labels)]
    assert [found[:3] for found in entities(words, marks(labels))] == expected


@given(st.lists(st.sampled_from(["O", "B-A", "I-A", "B-B", "I-B"])))
def test_runs_cover_what_is_not_outside(labels: list[str]) -> None:
    words = [Word(i, i + 1, label, 0.5) for i, label in enumerate(labels)]
    found = entities(words, marks(["O", "B-A", "I-A", "B-B", "I-B"]))
    covered = [i for _, start, end, _ in found for i in range(start, end)]
    assert covered == [i for i, label in enumerate(labels) if label != "O"]
    for label, start, end, _ in found:
        assert {one[2:] for one in labels[start:end]} == {label}
        assert not any(one.startswith("B") for one in labels[start + 1 : end])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=80))
def test_any_text_at_all(model: unmask.Predictor, text: str) -> None:
    end = 0
    for one in model.tag(text):
        assert end <= one.start < one.end <= len(text)
        assert one.text == text[one.start : one.end]
        end = one.end


def test_bare_labels_and_json(tmp_path: Path, vocabulary: list[str]) -> None:
    make_varied("BertForTokenClassification", tmp_path, vocabulary, **shape(["noun", "verb", "O"]))
    found = unmask.load(tmp_path).tag(TEXTS[0])
    assert {one.label for one in found} <= {"noun", "verb"}
    assert set(json.loads(json.dumps([one.json() for one in found]))[0]) == {"label", "start", "end", "text", "score"}


def test_a_pair_is_refused(model: unmask.Predictor) -> None:
    with pytest.raises(unmask.UserError, match=r"^input 1 is .*; a text is asked for"):
        model.tag(("a", "b"))


def test_spaces_are_no_part_of_an_entity(tmp_path: Path) -> None:
    model = byte_level("ModernBertForTokenClassification", tmp_path, **shape(["O", "B-X", "I-X"]))
    model.model.heads["tag"].out.bias.data = torch.tensor([0.0, 90.0, 0.0])  # type: ignore[union-attr]
    text = "Angela   Merkel\n\n서울 🎉  "
    assert [(one.text, one.start, one.end) for one in model.tag(text)] == [("Angela", 0, 6), ("Merkel", 9, 15), ("서울", 17, 19), ("🎉", 20, 21)]
    model.model.heads["tag"].out.bias.data = torch.tensor([0.0, 0.0, 90.0])  # type: ignore[union-attr]
    assert [one.text for one in model.tag(text)] == ["Angela   Merkel\n\n서울 🎉"]
    assert model.tag("  \n") == []
