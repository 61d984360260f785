"""Counts are the same whatever the order, the cuts and the memory; words as BERT's own rules have them."""

from __future__ import annotations

import pydoc_data.topics
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from tokenizers import normalizers, pre_tokenizers

from tokenizer.test_wordpiece import hard
from unmask.errors import UserError
from unmask.tokenizer import Tokenizer, words
from unmask.tokenizer.words import Rules, Tally, choose, count, is_held, memory_size

TEXTS = [line for text in pydoc_data.topics.topics.values() for line in text.split("\n")]
KOREAN = ["나는 학교에 갔다, 학교는 멀다.", "漢字와 한글을 섞어 쓴다", "ㅋㅋㅋ 정말요?!"]


def counted(texts: Sequence[str], rules: Rules | None = None, memory: str = "2GB", *, hold: bool = False) -> dict[str, int]:
    found = count(texts, rules or Rules(), memory, hold=hold)
    try:
        return dict(found.tally)
    finally:
        found.close()


def plainly(texts: Sequence[str], *, cased: bool = False, strip: bool = False) -> dict[str, int]:
    normalizer = normalizers.BertNormalizer(clean_text=True, lowercase=not cased, strip_accents=strip, handle_chinese_chars=True)
    splitter, found = pre_tokenizers.BertPreTokenizer(), Counter[str]()
    for text in texts:
        clean = normalizer.normalize_str("".join("\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in text))
        found.update(word for word, _ in splitter.pre_tokenize_str(clean))
    return {word: number for word, number in found.items() if len(word) <= 100}


@pytest.mark.parametrize(("cased", "strip"), [(False, False), (True, False), (False, True)])
def test_words_are_those_of_the_rust_library(cased: bool, strip: bool) -> None:
    texts = [*TEXTS[:3000], *KOREAN, *hard(400)]
    assert counted(texts, Rules(cased=cased, strip_accents=strip)) == plainly(texts, cased=cased, strip=strip)


@given(some.lists(some.text(max_size=40), min_size=1, max_size=20))
@settings(deadline=None, max_examples=200)
def test_any_text(texts: list[str]) -> None:
    expected = plainly(texts)
    if expected:
        assert counted(texts) == expected
    else:
        with pytest.raises(UserError, match="no words in the text"):
            counted(texts)


def test_neither_order_nor_memory_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [*TEXTS, *KOREAN, "\ud800 half", "x" * 99 + "\x0cy"]
    expected = counted(texts)
    random.Random(0).shuffle(texts)
    assert counted(texts) == expected
    assert counted(["\n".join(texts)]) == expected, "one long text"
    monkeypatch.setattr(words, "PYTHON", 100_000_000 - 40_000)  # some 10 kB for each tally
    monkeypatch.setattr(words, "BLOCK", 1 << 10)
    monkeypatch.setattr(words, "RUNS", 10)
    spilled = count(texts, Rules(), "100MB", hold=False)
    assert len(spilled.tally.runs) > 1
    listed = list(spilled.tally)
    assert dict(listed) == expected
    assert [word for word, _ in listed] == sorted(expected), "each once, in order"
    assert list(spilled.tally) == listed, "may be asked for again"
    spilled.close()


def test_runs_are_merged_before_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "RUNS", 3)
    tally = Tally(1)
    for number in range(20):
        tally.add([f"w{number % 7}", "x"], 3)
    assert len(tally.runs) <= 3
    assert dict(tally) == {"x": 20} | {f"w{n}": 3 - (n == 6) for n in range(7)}
    tally.close()
    assert tally.empty


def test_nothing_is_left_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tally = Tally(1)
    tally.add(["a", "b"], 2)
    assert len(tally.runs) == 1
    assert list(tmp_path.iterdir()) == []
    tally.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("many", [1, 10_000])
def test_a_full_disk_is_said_by_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("tempfile.TemporaryFile", lambda mode, **settings: open("/dev/full", "w", **settings))  # noqa: SIM115
    with pytest.raises(UserError) as caught:
        Tally(1).add([f"word{number}" for number in range(many)], 9)
    assert str(caught.value) == (
        f"the temporary folder {tmp_path} cannot take the words that are counted (No space left on device); free some space or set TMPDIR to another place"
    )


def test_a_text_in_a_hundred_is_held() -> None:
    texts = [f"text number {number} says word{number}" for number in range(5000)]
    found = count([*texts, *texts], Rules())
    held = [text for text in texts if is_held(text)]
    assert 20 < len(held) < 100
    assert (found.texts, found.held_texts) == (10_000, 2 * len(held))
    learned = dict(found.tally)
    for text in held:
        assert text.split()[-1] not in learned
    assert dict(found.held)["text"] == 2 * len(held)
    found.close()


def test_where_all_would_be_held_nothing_is() -> None:
    text = next(text for text in (f"a text {number}" for number in range(10_000)) if is_held(text))
    found = count([text], Rules())
    assert (dict(found.tally)["text"], found.held_texts, found.held.empty) == (1, 0, True)
    found.close()


def test_long_words_and_broken_letters_are_counted_as_such() -> None:
    found = count(["y" * 101, "y" * 101 + " fine", "y" * 100, "ha\ud800lf", "ha\ud800lf \udfff"], Rules(), hold=False)
    assert dict(found.tally) == {"fine": 1, "y" * 100: 1, "half": 2}
    assert (found.too_long, found.broken) == (2, 3)
    found.close()


def test_a_chunk_without_end_is_cut() -> None:
    found = count(["漢字" * 100_000 + "x" * 200_000], Rules(), hold=False)
    assert dict(found.tally)["漢"] == 100_000
    found.close()


@pytest.mark.parametrize("texts", [[], [""], [" \n\t"], ["\x00\x01 \ufffd"], ["\ud800"]])
def test_no_words(texts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        counted(texts)
    assert str(caught.value) == "there are no words in the text; give texts with some"


@pytest.mark.parametrize(("said", "size"), [("2GB", 2 * 10**9), ("500 mb", 5 * 10**8), ("1.5GiB", 3 << 29), (10**9, 10**9), ("100MB", 10**8)])
def test_memory(said: str | int, size: int) -> None:
    assert memory_size(said) == size


@pytest.mark.parametrize("said", ["2 gigs", "", "GB", "-1GB", "2", "1e9", "nanGB", "٣GB"])
def test_memory_that_cannot_be_understood(said: str) -> None:
    with pytest.raises(UserError) as caught:
        memory_size(said)
    assert str(caught.value) == f"a memory of {said!r} cannot be understood; write it as 500MB or 2GB"


@pytest.mark.parametrize("said", ["99MB", "1KB", 5, "0GB"])
def test_too_little_memory(said: str | int) -> None:
    with pytest.raises(UserError, match="is too little to count words in; give 100MB or more"):
        memory_size(said)


def test_words_to_add_are_those_that_save_most(minilm: Path) -> None:
    tokenizer = Tokenizer.load(minilm)
    pieces = {word: len(found.ids) - 2 for word in ("blockchain", "tokenizer", "the", "unaffable") for found in tokenizer.encode([word])}
    counts = {"blockchain": 9, "tokenizer": 8, "the": 1000, "unaffable": 1, "3141592653": 50, "...": 7, "a-b": 90}
    expected = sorted((word for word in ("blockchain", "tokenizer")), key=lambda word: (-counts[word] * (pieces[word] - 1), word))
    assert choose(counts.items(), tokenizer, 2) == expected
    assert choose(counts.items(), tokenizer, 1) == expected[:1]
    assert choose(reversed(counts.items()), tokenizer, 2) == expected
    assert "unaffable" in choose(counts.items(), tokenizer, 3, least=1)
    with pytest.raises(UserError) as caught:
        choose(counts.items(), tokenizer, 3)
    assert str(caught.value) == "only 2 words stand at least 2 times and are not whole yet; ask for 2 or fewer, or give more text"
    assert tokenizer.add(expected).keys() == set(expected)


def test_equal_words_to_add_are_taken_by_spelling(minilm: Path) -> None:
    tokenizer = Tokenizer.load(minilm)
    found = choose({"zzqx": 5, "zzqw": 5, "zzqv": 5}.items(), tokenizer, 2)
    assert found == sorted(found)


def test_an_unknown_word_is_worth_its_letters() -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "##c"]
    tokenizer = Tokenizer.from_vocabulary({piece: number for number, piece in enumerate(pieces)})
    assert choose({"abc": 5, "хата": 5}.items(), tokenizer, 1) == ["хата"]


def test_the_rules_of_a_tokenizer(minilm: Path) -> None:
    assert Rules.of(Tokenizer.load(minilm)).words("Ünsere, Welt") == ["unsere", ",", "welt"]
    special = {piece: number for number, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])}
    cased = Tokenizer.from_vocabulary(special, {"do_lower_case": False})
    assert Rules.of(cased).words("Ünsere, 漢字") == ["Ünsere", ",", "漢", "字"]


def test_what_can_continue_a_word() -> None:
    rules = Rules()
    assert [rules.joins(letter) for letter in "a가1▁漢.$é"] == [True, True, True, True, False, False, False, True]
