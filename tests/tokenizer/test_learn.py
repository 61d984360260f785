"""Vocabularies of exactly the size asked for, the same from the same text, that unmask and transformers load alike; and every refusal."""

from __future__ import annotations

import json
import os
import pydoc_data.topics
import random
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import transformers

from unmask.errors import UserError
from unmask.tokenizer import Tokenizer, learn, words
from unmask.tokenizer.learn import SPECIALS, Learned
from unmask.tokenizer.words import Rules

TEXTS = [line for text in pydoc_data.topics.topics.values() for line in text.split("\n") if line]
STEMS = "학교 나라 사람 하늘 바다 노래 마음 시간 친구 이야기 대통령 민주주의 경제 역사 문화".split()
PARTICLES = "은 는 이 가 을 를 에 에서 으로 와 과 도 만 까지 부터".split()


def korean(count: int = 2000) -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choice(STEMS) + draw.choice(PARTICLES) for _ in range(8)) + "." for _ in range(count)]


def pieces_of(learned: Learned) -> list[str]:
    return learned.tokenizer.files()["vocab.txt"].split("\n")[:-1]


def said(texts: Sequence[str], *arguments: Any, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        learn.learn(texts, *arguments, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def whole(texts: Sequence[str], **settings: Any) -> Learned:
    """The largest vocabulary that the text gives, as the refusal of a larger one says."""
    return learn.learn(texts, asked_for(said(texts, 100_000, **settings)), **settings)


def asked_for(message: str) -> int:
    return int(message.rsplit("ask for ", 1)[1].split()[0].replace(",", ""))


@pytest.mark.parametrize("by", ["frequency", "likelihood"])
def test_exactly_the_size_and_the_same_in_any_order(by: str) -> None:
    found = learn.learn(TEXTS, 2000, by=by)
    pieces = pieces_of(found)
    assert len(pieces) == len(set(pieces)) == 2000
    assert pieces[:5] == SPECIALS == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    shuffled = random.Random(1).sample(TEXTS, len(TEXTS))
    again = learn.learn(iter(shuffled), 2000, by=by)
    assert again.tokenizer.files() == found.tokenizer.files()
    assert again.report == found.report


def test_a_smaller_one_is_the_beginning_of_a_larger_one() -> None:
    large = pieces_of(learn.learn(TEXTS, 2500))
    assert pieces_of(learn.learn(TEXTS, 1500)) == large[:1500]
    assert large != pieces_of(learn.learn(TEXTS, 2500, by="likelihood"))


def test_the_same_in_another_process() -> None:
    """Where strings have other hashes, and sets another order."""
    program = (
        "import pydoc_data.topics, hashlib\nfrom unmask.tokenizer.learn import learn\n"
        "found = learn(list(pydoc_data.topics.topics.values()), 1500).tokenizer.files()['vocab.txt']\nprint(hashlib.sha256(found.encode()).hexdigest())"
    )
    seen = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}).stdout
        for seed in "012"
    }
    assert len(seen) == 1


def test_the_most_frequent_word_comes_out_whole() -> None:
    found = whole(["banana bandana"] * 50)
    assert {"banana", "bandana"} <= set(pieces_of(found))
    assert [one.tokens[1:-1] for one in found.tokenizer.encode(["banana"], offsets=True)] == [["banana"]]


def test_every_letter_in_both_forms_so_that_no_word_is_unknown() -> None:
    found = learn.learn(TEXTS, 1000, coverage=1.0)
    pieces = set(pieces_of(found))
    rules = Rules()
    letters = {letter for text in TEXTS for word in rules.words(text) for letter in word}
    assert letters <= pieces
    assert {f"##{letter}" for letter in letters if letter.isalnum()} <= pieces
    assert "##." not in pieces, "marks stand alone"
    encoded = found.tokenizer.encode(["".join(sorted(letters)), "".join(sorted(letters, reverse=True))], offsets=True)
    assert all("[UNK]" not in one.tokens for one in encoded)


def test_the_alphabet_is_what_spells_the_words() -> None:
    """Of 100 words 90 are of a alone, 9 hold a b, and the one with a c is long: coverage counts words, not letters."""
    texts = ["aa " * 90 + "ab " * 9 + "c" * 50] * 20
    assert {"c", "##c"} <= set(pieces_of(learn.learn(texts, 12, coverage=1.0)))
    found = set(pieces_of(learn.learn(texts, 12, coverage=0.99)))
    assert {"a", "##a", "c", "##c"} <= found, "c is the more frequent letter, so it comes before b"
    assert "##b" in found
    assert {"a", "##a"} == {piece for piece in pieces_of(learn.learn(texts, 8, coverage=0.9)) if piece not in SPECIALS} - {"aa"}


def test_no_more_words_are_unknown_than_coverage_allows() -> None:
    texts = [*TEXTS, *korean(), *(f"한자 {chr(0x4E00 + number)}" for number in range(30))]
    for coverage in (0.99, 0.999):
        found = learn.learn(texts, 3000, coverage=coverage)
        rules, letters = Rules(), {piece for piece in pieces_of(found) if len(piece) == 1}
        spelled = [set(word) <= letters for text in texts for word in rules.words(text)]
        assert coverage <= sum(spelled) / len(spelled) < 1 - (1 - coverage) / 4


def test_hangul_stays_in_syllables() -> None:
    for cased in (False, True):
        found = learn.learn(korean(), 200, cased=cased)
        assert found.report.own.jamo == 0
        assert found.report.own.all.unknown == 0
        assert {"학교", "##에서"} <= set(pieces_of(found))
        assert found.report.own.scripts["Hangul"].pieces_per_word < 2
    apart = learn.learn(korean(), 200, hangul="jamo")
    assert apart.report.own.jamo > 100
    assert apart.report.own.all.unknown == 0


def test_half_a_syllable_is_no_letter() -> None:
    found = learn.learn([*korean(), "글쎄요ᆢ 네"], 200, coverage=1.0)
    assert found.report.own.jamo == 0
    message = said([unicodedata.normalize("NFD", text) for text in korean()], 200)
    assert message == "98% of the letters are parts of Hangul syllables; compose the text (Unicode's NFC), or ask for hangul jamo"


def test_case_and_accents() -> None:
    texts = ["Äpfel und Öl, äpfel und öl"] * 100
    assert {"äpfel", "öl"} <= set(pieces_of(whole(texts)))
    assert {"Äpfel", "äpfel", "Öl", "öl"} <= set(pieces_of(whole(texts, cased=True, least=1)))
    assert {"apfel", "ol"} <= set(pieces_of(whole(texts, hangul="jamo")))


@pytest.mark.parametrize("settings", [{}, {"cased": True}, {"hangul": "jamo"}, {"cased": True, "hangul": "jamo"}])
def test_unmask_and_transformers_load_it_alike(tmp_path: Path, settings: dict[str, Any]) -> None:
    texts = [*TEXTS[:4000], *korean(300), "Ünïcode ÀÉ", "漢字 ▁x", "[MASK] [CLS]"]
    found = learn.learn(texts, 2500, coverage=1.0, **settings)
    found.save(tmp_path / "tok")
    ours, theirs = Tokenizer.load(tmp_path / "tok"), transformers.BertTokenizer.from_pretrained(tmp_path / "tok")
    lines = [*texts[::50], *texts[-3:], "unseen wörds, ÉÀ 漢 학교에서는"]
    assert [one.ids for one in ours.encode(lines)] == theirs(lines)["input_ids"] == [one.ids for one in found.tokenizer.encode(lines)]
    (tmp_path / "tok" / "tokenizer.json").unlink()
    assert [one.ids for one in Tokenizer.load(tmp_path / "tok").encode(lines)] == theirs(lines)["input_ids"]
    settings_said = json.loads((tmp_path / "tok" / "tokenizer_config.json").read_text())
    assert settings_said["do_lower_case"] == (not settings.get("cased", False))
    assert settings_said["strip_accents"] == (settings.get("hangul") == "jamo")


def test_what_is_saved(tmp_path: Path) -> None:
    found = learn.learn(TEXTS, 1000, by="likelihood")
    found.save(tmp_path / "new" / "tok")
    found.save(tmp_path / "new" / "tok")
    names = {path.name for path in (tmp_path / "new" / "tok").iterdir()}
    assert names == {"vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "report.json"}
    report = json.loads((tmp_path / "new" / "tok" / "report.json").read_text(encoding="utf-8"))
    assert report == json.loads(json.dumps(found.report.json()))
    assert (report["made"]["by"], report["made"]["size"], report["made"]["learned_share"]) == ("likelihood", 1000, 1.0)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="could not be written"):
        found.save(tmp_path / "file" / "tok")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "pytorch_model-00001-of-00002.bin"])
def test_a_model_keeps_its_vocabulary(tmp_path: Path, name: str) -> None:
    found = learn.learn(TEXTS, 1000)
    (tmp_path / name).write_text("{}")
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    with pytest.raises(UserError) as caught:
        found.save(tmp_path)
    assert str(caught.value) == f"{tmp_path} holds a model ({name}), whose ids another vocabulary would give other meanings; choose another folder"
    assert {path.name for path in tmp_path.iterdir()} == {name, "vocab.txt"}
    assert (tmp_path / "vocab.txt").read_text() == "[PAD]\n"


def test_where_a_tokenizer_may_be_written(tmp_path: Path) -> None:
    learn.may_write(tmp_path / "none" / "yet")
    learn.may_write(tmp_path)
    for name in learn.FILES:
        (tmp_path / name).write_text("")
    (tmp_path / ".vocab.txt.1234").write_text("")  # of a save that was stopped
    learn.may_write(tmp_path)
    (tmp_path / "docs.txt").write_text("")
    with pytest.raises(UserError) as caught:
        learn.may_write(tmp_path)
    assert str(caught.value) == f"{tmp_path} holds docs.txt, which is no file of a tokenizer; choose a new or an empty folder"
    with pytest.raises(UserError, match=r"docs.txt is a file, not a folder to write a tokenizer to; choose another place"):
        learn.may_write(tmp_path / "docs.txt")


def test_words_that_are_hard() -> None:
    texts = ["▁under ▁score ##hash \x07bell ta\tb", "\ud800half \udfff", "x" * 101, "[PAD] [UNK]"] * 30
    found = learn.learn(texts, 60, coverage=1.0)
    assert {"▁under", "bell"} & set(pieces_of(found))
    assert found.report.made["words_too_long"] == 30
    assert found.report.made["words_with_broken_letters"] == 60
    assert found.report.own.all.unknown == pytest.approx(1 / 20, abs=0.1)


def test_no_piece_of_more_than_64_letters() -> None:
    found = whole(["a" * 100] * 9 + ["b" * 100] * 9)
    assert max(len(piece.removeprefix("##")) for piece in pieces_of(found)) == 64


def test_what_does_not_fit_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = learn.learn(TEXTS, 600)
    assert whole.report.made["learned_share"] == 1
    monkeypatch.setattr(learn, "PLACE", 2000)
    monkeypatch.setattr(learn, "PYTHON", 60_000_000)
    with pytest.warns(UserWarning, match="fit into 100MB and are learned from; all would with") as told:
        part = learn.learn(TEXTS, 600, memory="100MB")
    share = part.report.made["learned_share"]
    assert 0.5 < share < 1, "the rarest go first"
    said = str(told[0].message)
    assert said.startswith(f"only {share:.1%} of the words, the most frequent,")
    assert pieces_of(learn.learn(TEXTS, 600, memory=said.rsplit(" ", 1)[1])) == pieces_of(whole), "as much as was said is enough"
    with pytest.warns(UserWarning, match="fit into 100MB"):
        assert pieces_of(learn.learn(TEXTS[::-1], 600, memory="100MB")) == pieces_of(part)
    monkeypatch.setattr(words, "PYTHON", 100_000_000 - 40_000)  # what is counted goes to disk too
    with pytest.warns(UserWarning, match="fit into 100MB"):
        assert pieces_of(learn.learn(TEXTS, 600, memory="100MB")) == pieces_of(part)


MEASURED = """
import hashlib, sys, warnings
from unmask.tokenizer.learn import learn
warnings.simplefilter("ignore")
numbered = (hashlib.sha512(str(number).encode()).hexdigest() for number in range(int(sys.argv[1])))
learn((" ".join(text[start : start + 9] for start in range(0, 128, 9)) for text in numbered), 300, memory="100MB")
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""  # not getrusage's: that begins with what the process had that started this one


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the most that was used is not told here")
def test_it_stays_within_its_memory() -> None:
    ran = subprocess.run([sys.executable, "-c", MEASURED, "20000"], capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert int(ran.stdout.split()[1]) * 1024 < 85_000_000, "of 100 MB; the command line and longer words take some more"


def test_by_likelihood_what_is_frequent_is_joined() -> None:
    """As published it joins what stands together and nowhere else, which is mostly rare."""
    found, rare = (learn.learn(TEXTS, 2000, by="likelihood", least=least).report for least in (None, 2))
    assert rare.own.all.pieces_per_word > 1.3 * found.own.all.pieces_per_word
    assert (rare.made["least"], learn.learn(TEXTS, 2000).report.made["least"]) == (2, 2)
    assert found.made["least"] > 2


def test_by_likelihood_the_largest_vocabulary_is_as_large() -> None:
    assert asked_for(said(TEXTS[:300], 30_000, by="likelihood")) == asked_for(said(TEXTS[:300], 30_000, by="likelihood", least=2))
    pairs = (left + right for left in "abcdefghijklmnopqrst" for right in "abcdefghijklmnopqrst")
    text = " ".join(f"{word} " * max(400 - number, 2) for number, word in enumerate(pairs))  # no piece on the way: a quarter are far too few
    found = learn.learn([text], 445, by="likelihood")
    assert (found.report.made["least"], found.report.own.all.pieces_per_word) == (2, 1)


def test_it_tells_how_far_it_is() -> None:
    told: list[int] = []
    learn.learn(TEXTS, 1500, tell=told.append)
    assert told == sorted(set(told))
    assert told[-1] >= 1400


# ---- refusals


def test_no_text() -> None:
    assert said([], 100) == "there are no words in the text; give texts with some"


def test_a_size_below_the_alphabet() -> None:
    message = said(TEXTS, 50)
    assert message.startswith("a vocabulary of 50 has no room for the special pieces and an alphabet of")
    number = asked_for(message)
    assert len(pieces_of(learn.learn(TEXTS, number))) == number
    assert "has no room" in said(TEXTS, number - 1)
    assert "has no room" in said(TEXTS, 0)


@pytest.mark.parametrize(("texts", "least"), [(["a a a a"], 2), (["aaaa aaaa"], 2), (TEXTS[:30], 2), (TEXTS[:30], 1), (["one two"], 2)])
@pytest.mark.parametrize("by", ["frequency", "likelihood"])
def test_too_few_words(texts: list[str], least: int, by: str) -> None:
    message = said(texts, 30_000, least=least, by=by)
    number = asked_for(message)
    assert message.startswith(f"the text has only {number:,} pieces, its alphabet and what stands at least {'twice' if least == 2 else 'once'};")
    assert len(pieces_of(learn.learn(texts, number, least=least, by=by))) == number


def test_one_letter_only() -> None:
    pieces = pieces_of(whole(["a" * 50] * 5))
    assert {"a", "##a", "##aa", "a" * 50} <= set(pieces)
    assert {letter for piece in pieces[5:] for letter in piece} == {"a", "#"}


REFUSED: list[tuple[dict[str, Any], Callable[[str], bool]]] = [
    ({"by": "frequencies"}, lambda message: message == "pieces cannot be chosen by 'frequencies', did you mean frequency?"),
    ({"hangul": "letters"}, lambda message: message.startswith("Hangul cannot be kept in 'letters'")),
    ({"coverage": 99.95}, lambda message: message.startswith("a coverage of 99.95 is no share")),
    ({"coverage": 0.0}, lambda message: "is no share" in message),
    ({"coverage": float("nan")}, lambda message: "is no share" in message),
    ({"least": 0}, lambda message: message == "no piece can stand 0 times; give a least of 1 or more"),
    ({"memory": "2 gigs"}, lambda message: "cannot be understood; write it as 500MB or 2GB" in message),
    ({"memory": "50MB"}, lambda message: "give 100MB or more" in message),
]


@pytest.mark.parametrize(("settings", "right"), REFUSED)
def test_what_cannot_be_is_said_before_anything_is_read(settings: dict[str, Any], right: Callable[[str], bool]) -> None:
    def texts() -> Any:
        raise AssertionError("was read")
        yield

    assert right(said(texts(), 1000, **settings))
