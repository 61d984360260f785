"""Answering from a text: what a plain loop over windows, run alone through transformers, says."""

from __future__ import annotations

import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

import unmask
from conftest import WORDS, sentences
from models import Case, make, make_varied
from unmask.infer.predictor import Predictor
from unmask.model.card import Card
from unmask.tasks.base import Window
from unmask.tasks.spans import Span, Spans

QUESTION = "who sat on the mat"
SHORT = "The Cat sat; on a Café mat."
CONTEXTS = {
    "short": SHORT,
    "one piece": "cat",
    "just fits": "the " * 55,
    "just too long": "the " * 57,
    "long": " ".join(sentences(8, seed=3)),
    "korean and emoji": " ".join(["서울은 😀 대한민국의 수도이다 e\u0301te\u0301 nul\x00in"] * 6),
    "marks behind letters": "a cafe\u0301 ole\u0301",
    "spaces around": "   \n the cat \t ",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, vocabulary: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("spans")
    make_varied("BertForQuestionAnswering", folder, vocabulary)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Predictor:
    return unmask.load(folder)


class ByHand:
    """google-research's rule in plain loops: every window alone through transformers."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model: Any = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()

    @torch.inference_mode()
    def windows(self, question: str, context: str, length: int = 64, overlap: int = 128) -> list[tuple[int, np.ndarray[Any, Any]]]:
        """(number of the first context piece, logits of [CLS] and of the context's pieces) of each window."""
        asked = self.tokenizer(question, add_special_tokens=False)["input_ids"]
        ids = self.tokenizer(context, add_special_tokens=False, verbose=False)["input_ids"]
        room = length - 3 - len(asked)
        step = room - min(overlap, room // 2)
        firsts = [first for first in range(0, len(ids), step) if first == 0 or first - step + room < len(ids)]
        return [(first, self.logits(asked, ids[first : first + room])) for first in firsts]

    def logits(self, question: list[int], context: list[int]) -> np.ndarray[Any, Any]:
        tokens = [self.tokenizer.cls_token_id, *question, self.tokenizer.sep_token_id, *context, self.tokenizer.sep_token_id]
        before = len(question) + 2
        out = self.model(torch.tensor([tokens]), token_type_ids=torch.tensor([[0] * before + [1] * (len(context) + 1)]))
        logits = torch.stack([out.start_logits[0], out.end_logits[0]], -1).numpy()
        return np.concatenate([logits[:1], logits[before:-1]])

    def best(self, question: str, context: str, longest: int = 30, none: bool = False, **cut: int) -> tuple[int, int, float, float, float]:
        """(start, end, probability) of the best span; the null score minus its score, and the null's probability."""
        offsets = self.tokenizer(context, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]
        windows = self.windows(question, context, **cut)
        score, place, null, starts, ends = -np.inf, (0, 0), np.inf, 0.0, 0.0
        for first, logits in windows:
            null = min(null, float(logits[0].sum()))
            for i in range(1, len(logits)):
                for j in range(i, min(i + longest, len(logits))):
                    if logits[i, 0] + logits[j, 1] > score:
                        score, place = float(logits[i, 0] + logits[j, 1]), (first + i - 1, first + j - 1)
            counted = logits.astype(np.float64)[0 if none else 1 :]
            starts, ends = starts + float(np.exp(counted[:, 0]).sum()), ends + float(np.exp(counted[:, 1]).sum())
        end = offsets[place[1]][1]
        while unicodedata.combining(context[end : end + 1] or "x"):  # the tokenizer drops a mark, and its place with it
            end += 1
        return offsets[place[0]][0], end, float(np.exp(score)) / starts / ends, null - score, float(np.exp(null)) / starts / ends


@pytest.fixture(scope="module")
def hand(folder: Path) -> ByHand:
    return ByHand(folder)


def check(found: Span, context: str, expected: tuple[float, ...]) -> None:
    assert (found.start, found.end) == expected[:2]
    assert found.text == context[found.start : found.end]
    assert found.score == pytest.approx(expected[2], abs=1e-5)


# ---- windows


@pytest.mark.parametrize("name", CONTEXTS)
def test_answers_are_those_of_a_plain_loop(model: Predictor, hand: ByHand, name: str) -> None:
    for question in (QUESTION, "?", "who was it that was doing what in the old town near the river bank"):
        check(model.answer(question, CONTEXTS[name]), CONTEXTS[name], hand.best(question, CONTEXTS[name]))


@pytest.mark.parametrize("longest", [1, 2, 10**9])
def test_how_long_an_answer_may_be(model: Predictor, hand: ByHand, longest: int) -> None:
    context = CONTEXTS["long"]
    found = model.answer(QUESTION, context, longest=longest)
    check(found, context, hand.best(QUESTION, context, longest=longest))
    if longest == 1:
        assert " " not in found.text


def test_the_longest_answer_ends_where_it_should(model: Predictor) -> None:
    """30 pieces by default, as the paper's code has it: a peak at the start and one 30 pieces on are no answer together."""
    assert model.tokenizer is not None
    pair = ("who", "a " * 40)
    encoding = model.tokenizer.encode([pair], offsets=True)[0]
    first = encoding.sequence_ids.index(1)
    for options, longest in (({}, 30), ({"longest": 7}, 7)):
        task = Spans(model.tokenizer, Card(), **options)
        for pieces in (longest, longest + 1):
            logits = np.zeros((len(encoding), 2), np.float32)
            logits[first, 0], logits[first + pieces - 1, 1] = 9, 8
            found = task.decode(pair, [Window(encoding, 0)], [logits])
            assert found.start == 0
            assert (found.end == 2 * pieces - 1) == (pieces == longest)


@pytest.mark.parametrize("windows", [0, 7])
def test_the_card_says_how_windows_overlap(folder: Path, hand: ByHand, windows: int) -> None:
    model = unmask.load(folder)
    object.__setattr__(model.card, "windows", windows)
    context = CONTEXTS["long"]
    check(model.answer(QUESTION, context), context, hand.best(QUESTION, context, overlap=windows))


def test_an_answer_does_not_hang_on_what_else_is_asked(model: Predictor, hand: ByHand) -> None:
    """A long question leaves less room; that must not move the windows of the others."""
    draw = random.Random(0)
    pairs = [(" ".join(draw.choices(WORDS, k=draw.randint(1, 44))), " ".join(draw.choices(WORDS, k=draw.randint(1, 300)))) for _ in range(12)]
    together = model.answer(pairs)
    for (question, context), found in zip(pairs, together, strict=True):
        check(found, context, hand.best(question, context))
    for pair, found in zip(pairs, together, strict=True):
        alone = model.answer(*pair)
        assert (alone.start, alone.end) == (found.start, found.end)
        assert alone.score == pytest.approx(found.score, abs=1e-6)


def pointing(folder: Path, vocabulary: list[str], word: str) -> Predictor:
    """A model that answers with one word wherever it stands: its layers add nothing, and its head is that word's own vector."""
    reference = make_varied("BertForQuestionAnswering", folder, vocabulary)
    with torch.no_grad():
        for name, tensor in reference.named_parameters():
            if "output.dense" in name or "position_embeddings" in name:
                tensor.zero_()
        own = reference.bert(torch.tensor([[vocabulary.index(word)]]), token_type_ids=torch.ones(1, 1, dtype=torch.long)).last_hidden_state[0]
        reference.qa_outputs.weight.copy_(own.expand(2, -1) / own.norm())
    reference.save_pretrained(folder)
    return unmask.load(folder)


@pytest.mark.parametrize("place", [5_000, 9_999])
def test_ten_thousand_words(tmp_path: Path, vocabulary: list[str], place: int) -> None:
    """Found in a window amid, and in the last."""
    words = random.Random(1).choices(WORDS, k=10_000)
    words[place] = "zebra"
    context = " ".join(words)
    found = pointing(tmp_path, vocabulary, "zebra").answer("which animal", context)
    assert found.text == "zebra"
    assert found.start == context.index("zebra")


def test_thousands_of_words_as_a_plain_loop(model: Predictor, hand: ByHand) -> None:
    context = " ".join(random.Random(2).choices(WORDS, k=1_000))
    check(model.answer(QUESTION, context), context, hand.best(QUESTION, context))


# ---- no answer


def thresholds(folder: Path, tmp_path: Path, **found: float) -> Predictor:
    model = unmask.load(folder)
    object.__setattr__(model.card, "thresholds", found)
    return model


@pytest.mark.parametrize("name", ["short", "long"])
def test_no_answer_is_the_papers_rule(folder: Path, tmp_path: Path, hand: ByHand, name: str) -> None:
    """Null where s[CLS] + e[CLS], the least of all windows, beats the best span by more than the threshold."""
    context = CONTEXTS[name]
    *expected, difference, null = hand.best(QUESTION, context, none=True)
    below = thresholds(folder, tmp_path, none=difference - 1e-3).answer(QUESTION, context)
    assert (below.text, below.start, below.end) == ("", 0, 0)
    assert below.score == pytest.approx(null, abs=1e-5)
    check(thresholds(folder, tmp_path, none=difference + 1e-3).answer(QUESTION, context), context, tuple(expected))
    check(thresholds(folder, tmp_path, none=-100).answer(QUESTION, context, none=False), context, hand.best(QUESTION, context))


@pytest.mark.parametrize("sign", [1, -1], ids=["answers", "does not"])
def test_none_can_be_asked_for_without_a_threshold(folder: Path, sign: int) -> None:
    """Then the threshold is 0; without asking, a folder that has none always answers."""
    model, hand = unmask.load(folder), ByHand(folder)
    with torch.no_grad():
        for tensor in (*model.model.heads["spans"].parameters(), *hand.model.qa_outputs.parameters()):
            tensor.mul_(sign)
    for context in ("mat", "the cat"):
        assert hand.best(QUESTION, context, none=True)[3] * sign < 0, "the case that is meant"
        assert (model.answer(QUESTION, context, none=True).text == "") == (sign == -1)
        assert model.answer(QUESTION, context).text


def test_the_scores_of_all_spans_sum_to_at_most_one(model: Predictor) -> None:
    """Every span in turn made the best one: their scores are one distribution, with no answer among them."""
    assert model.tokenizer is not None
    pair = ("who", "the cat sat")
    encoding = model.tokenizer.encode([pair], offsets=True)[0]
    logits = np.random.default_rng(0).normal(0, 2, (len(encoding), 2)).astype(np.float32)
    task = Spans(model.tokenizer, Card(thresholds={"none": -1000.0}))
    total = task.decode(pair, [Window(encoding, 0)], [logits]).score
    places = [i for i, which in enumerate(encoding.sequence_ids) if which == 1]
    starts, ends = (np.exp(logits[[0, *places], i].astype(np.float64)).sum() for i in (0, 1))
    task = Spans(model.tokenizer, Card(), longest=1)
    for _ in range(3):
        found = task.decode(pair, [Window(encoding, 0)], [logits])
        place = next(i for i in places if encoding.offsets[i][0] == found.start)
        total += float(np.exp(logits[place].astype(np.float64).sum())) / starts / ends
        logits[place] -= 1000
    assert 0 < total <= 1


# ---- what cannot be asked


@pytest.mark.parametrize("empty", ["", "  ", "\n\t\u3000", "\x00", "\u200b"])
def test_empty_texts_are_told(model: Predictor, empty: str) -> None:
    with pytest.raises(unmask.UserError, match=r"^the context of the question 'who sat on the mat' is empty; give the text to answer it from$"):
        model.answer([("a", "b"), (QUESTION, empty)])
    with pytest.raises(unmask.UserError, match=r"^the question to the context 'The Cat sat; on a Café mat.' is empty; ask something$"):
        model.answer([("a", "b"), (empty, SHORT)])


@pytest.mark.parametrize(("words", "room"), [(46, 15), (61, 0), (200, 0)])
def test_a_question_too_long_is_told(model: Predictor, words: int, room: int) -> None:
    with pytest.raises(
        unmask.UserError, match=rf"^the question '(what ){{11}}what…' leaves {room} of the model's 64 pieces for the context; ask a shorter one$"
    ):
        model.answer([("a", "b"), ("what " * words, SHORT)])


def test_the_longest_question_there_can_be(model: Predictor, hand: ByHand) -> None:
    check(model.answer("what " * 45, CONTEXTS["long"]), CONTEXTS["long"], hand.best("what " * 45, CONTEXTS["long"]))


@pytest.mark.parametrize("longest", [0, -1, 1.5])
def test_a_wrong_longest_is_told(model: Predictor, longest: Any) -> None:
    with pytest.raises(unmask.UserError, match=r"^longest is .*; give a whole number, 1 or more$"):
        model.answer(QUESTION, SHORT, longest=longest)


def test_one_text_is_no_pair(model: Predictor) -> None:
    with pytest.raises(unmask.UserError, match=r"a pair of texts"):
        model.answer([QUESTION])  # type: ignore[list-item]
    with pytest.raises(unmask.UserError, match=r"a pair of texts"):
        model.answer(QUESTION)


def test_json(model: Predictor) -> None:
    assert set(json.loads(json.dumps(model.answer(QUESTION, SHORT).json()))) == {"text", "start", "end", "score"}


# ---- a tokenizer whose pieces begin with the space before them


def byte_level(architecture: str, folder: Path, **settings: Any) -> Predictor:
    """ModernBERT's kind: pieces are bytes, a space belongs to the word behind it, and offsets say so."""
    texts = ["Angela Merkel visited Seoul in 2010 and then left.", "안녕하세요 서울 시민 여러분", "I love 🎉 Paris 😀!", "café   naïve\n\n"] * 20
    names = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    rust = Rust(models.BPE())
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    rust.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=400, special_tokens=names, initial_alphabet=alphabet, show_progress=False))
    single, pair = "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"
    rust.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    make(Case("modernbert", architecture, (), settings), folder, pieces=["x"] * rust.get_vocab_size())
    (folder / "vocab.txt").unlink()
    rust.save(str(folder / "tokenizer.json"))
    roles = {f"{name[1:-1].lower()}_token": name for name in names}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **roles}))
    return unmask.load(folder)


def test_an_answer_has_no_space_around_it(tmp_path: Path) -> None:
    model = byte_level("ModernBertForQuestionAnswering", tmp_path)
    for context in ("Angela Merkel visited Seoul in 2010 and then left.", "  Paris   \n\n   café \n ", "서울 시민 🎉 여러분"):
        for longest in (1, 2, 3):
            found = model.answer("Who visited Seoul?", context, longest=longest)
            assert found.text == context[found.start : found.end]
            assert found.text
            assert found.text == found.text.strip()
    with pytest.raises(unmask.UserError, match="is empty"):
        model.answer("Who?", " \n\n   ")
