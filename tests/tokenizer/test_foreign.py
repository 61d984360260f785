"""Tokenizers of folders without a tokenizer.json, against transformers' own on the same files, and SentencePiece itself."""

from __future__ import annotations

import base64
import io
import json
import pydoc_data.topics
import random
import resource
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import Tokenizer as Rust
from tokenizers import models, pre_tokenizers, trainers

from tokenizer.test_wordpiece import ask, first_difference, hard, write
from unmask.errors import UserError
from unmask.tokenizer import Tokenizer
from unmask.tokenizer.foreign import read_pieces

KOREAN = [
    "고양이가 강가에서 잔다.",
    "서울의 날씨는 맑고 바람이 세게 분다.",
    "새로운 단어를 배우는 것은 언제나 즐겁다.",
    "그는 어제 도서관에서 오래된 책 두 권을 빌렸다.",
    "기차가 늦어서 우리는 역에서 한 시간을 기다렸다.",
    "바다를 보러 가자고 동생이 말했다.",
]
SYMBOLS = ["(", ")", "-", ".", "€"]
FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]
TRIPS = [
    *["<mask>", " <mask> ", "[MASK]", " [MASK]", "<s>", "</s>", "<pad>", "<unk>", "[CLS]", "[SEP]", "<MASK>", "<mask>s", "un<mask>able"],
    *["``", "''", "``quoted''", "▁", "▁the", "the▁", "Ġthe", "Ċ", "don't", "I'll", "  the", "the  ", "\n\n", " \t ", "\u3000", "\u00a0", "ﬁ", "①", "㎏", "ｱ"],
]
CLASSES = {"roberta": "RobertaTokenizer", "albert": "AlbertTokenizer", "xlm-roberta": "XLMRobertaTokenizer"}
CONFIGS = {"roberta": "RobertaConfig", "albert": "AlbertConfig", "xlm-roberta": "XLMRobertaConfig"}
MASK = {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False, "special": True}


@cache
def lines() -> tuple[str, ...]:
    """What the models of this file learn from: Python's own documentation, and some Korean."""
    documents = [line.strip() for topic in pydoc_data.topics.topics.values() for line in topic.split("\n")]
    return (*(line for line in documents if line), *KOREAN * 40)


@cache
def trained(algorithm: str = "unigram", **options: Any) -> bytes:
    """A model of SentencePiece's, as its trainer writes it."""
    out = io.BytesIO()
    options = {"vocab_size": 2_000, "num_threads": 1, "minloglevel": 2, "hard_vocab_limit": False, **options}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines()), model_writer=out, model_type=algorithm, **options)
    return out.getvalue()


def albert() -> bytes:
    return trained(pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols="[CLS],[SEP]", user_defined_symbols=",".join(["[MASK]", *SYMBOLS]))


def xlm_roberta() -> bytes:
    return trained(unk_id=0, bos_id=1, eos_id=2, pad_id=-1)


@cache
def byte_pairs() -> tuple[str, str]:
    rust = Rust(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    rust.train_from_iterator(lines(), trainers.BpeTrainer(vocab_size=2_000, special_tokens=FAIRSEQ, initial_alphabet=alphabet, show_progress=False))
    state = json.loads(rust.model.__getstate__())
    vocabulary = state["vocab"] | {"<mask>": len(state["vocab"])}
    return json.dumps(vocabulary), "#version: 0.2\n" + "".join(f"{first} {second}\n" for first, second in state["merges"])


def folder_of(kind: str, folder: Path, **settings: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "roberta":
        for name, text in zip(("vocab.json", "merges.txt"), byte_pairs(), strict=True):
            (folder / name).write_text(text, encoding="utf-8")
    elif kind == "albert":
        (folder / "spiece.model").write_bytes(albert())
    else:
        (folder / "sentencepiece.bpe.model").write_bytes(xlm_roberta())
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def theirs_of(kind: str, folder: Path) -> Any:
    return getattr(transformers, CLASSES[kind]).from_pretrained(folder)


@cache
def harder(count: int, seed: int = 0) -> list[str]:
    """Hard lines, lines that were learned from, and what trips these tokenizers, in one another."""
    draw = random.Random(seed)
    known = draw.choices(lines(), k=count)
    made = [
        draw.choice(["", " ", "  "]).join(draw.sample([line, draw.choice(TRIPS), other[:40]], 3)) for line, other in zip(hard(count, seed), known, strict=True)
    ]
    return [draw.choice(three) for three in zip(hard(count, seed), known, made, strict=True)]


# ---- the pieces


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "roberta": ("roberta", {"mask_token": MASK}),
    "roberta, a space before all": ("roberta", {"mask_token": MASK, "add_prefix_space": True}),
    "roberta, offsets with spaces": ("roberta", {"mask_token": MASK, "trim_offsets": False}),
    "roberta, a mask that leaves the space": ("roberta", {"mask_token": MASK | {"lstrip": False}}),
    "albert": ("albert", {}),
    "albert, cased": ("albert", {"do_lower_case": False}),
    "albert, accents kept": ("albert", {"keep_accents": True}),
    "albert, no space before all": ("albert", {"add_prefix_space": False}),
    "xlm-roberta": ("xlm-roberta", {}),
    "xlm-roberta, a mask that takes the space": ("xlm-roberta", {"mask_token": MASK, "tokenizer_class": "XLMRobertaTokenizerFast"}),
}


@pytest.mark.parametrize(("kind", "settings"), CASES.values(), ids=CASES)
def test_hard_lines_are_theirs(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    folder, texts = folder_of(kind, tmp_path, **settings), harder(3_000)
    ours, theirs = Tokenizer.load(folder), theirs_of(kind, folder)
    found = ours.encode(texts, offsets=True)
    assert first_difference(texts, found, ask(theirs, texts)) is None
    assert [one.ids for one in ours.encode(texts[:1_000])] == [one.ids for one in found[:1_000]], "the fast way without offsets"
    assert sum(one.ids.count(ours.special("unk")) for one in found) < 0.4 * sum(map(len, found)), "the test says something only where most pieces are known"
    assert {role: ours.special(role) for role in ("mask", "pad", "cls", "sep", "unk")} == {
        role: getattr(theirs, f"{role}_token_id") for role in ("mask", "pad", "cls", "sep", "unk")
    }
    assert ours.size == len(theirs)
    assert [ours.decode(one.ids) for one in found[:200]] == [theirs.decode(one.ids, clean_up_tokenization_spaces=False) for one in found[:200]]


@pytest.mark.parametrize("kind", CLASSES)
def test_pairs_are_theirs_whole_and_cut(kind: str, tmp_path: Path) -> None:
    folder = folder_of(kind, tmp_path, **({} if kind == "albert" else {"mask_token": MASK}))
    ours, theirs = Tokenizer.load(folder), theirs_of(kind, folder)
    one, two = ([text[:120] for text in harder(300, seed=seed)] for seed in (1, 2))
    pairs = list(zip(one, two, strict=True))
    assert first_difference(pairs, ours.encode(pairs, offsets=True), ask(theirs, one, two)) is None
    for length, count in ((6, 20), (7, 20), (19, 300), (64, 300)):  # cut small, a pair is many windows of one with many of the other
        assert first_difference(one, ours.encode(one, length=length, offsets=True), ask(theirs, one, truncation=True, max_length=length)) is None
        found = ours.encode(pairs[:count], length=length, offsets=True)
        assert first_difference(pairs, found, ask(theirs, one[:count], two[:count], truncation="longest_first", max_length=length)) is None


def test_pairs_have_as_many_special_pieces_as_they_were_trained_with(tmp_path: Path) -> None:
    counts = {"roberta": (4, {0}), "xlm-roberta": (4, {0}), "albert": (3, {0, 1})}
    for kind, (count, segments) in counts.items():
        tokenizer = Tokenizer.load(folder_of(kind, tmp_path / kind))
        assert tokenizer.rust.num_special_tokens_to_add(True) == count
        (found,) = tokenizer.encode([("the cat", "a dog")])
        assert set(found.type_ids) == segments
        with pytest.raises(UserError, match=rf"length of {count + 1} pieces leaves no room beside the special ones; ask for {count + 2} or more"):
            tokenizer.encode([("the cat", "a dog")], length=count + 1)


def test_ids_are_those_of_sentencepiece_itself(tmp_path: Path) -> None:
    """Where the two agree by design: text that needs no cleaning, and no pieces that are taken whole out of any text."""
    texts = [line for line in dict.fromkeys(lines()) if line.isascii() or line in KOREAN][:3_000]
    assert len(texts) > 2_000
    engine = sentencepiece.SentencePieceProcessor(model_proto=xlm_roberta())
    ours = Tokenizer.load(folder_of("xlm-roberta", tmp_path / "xlm"))
    shifted = [[0, *(number + 1 if number else 3 for number in engine.encode(text)), 2] for text in texts]  # fairseq's numbers are one higher
    agree(ours, texts, shifted)
    engine = sentencepiece.SentencePieceProcessor(model_proto=albert())
    ours = Tokenizer.load(folder_of("albert", tmp_path / "albert"))
    plain = [text.lower() for text in texts if not any(symbol in text for symbol in [*SYMBOLS, "`", "''"])]
    assert len(plain) > 300
    agree(ours, plain, [[2, *engine.encode(text), 3] for text in plain])


def agree(ours: Tokenizer, texts: list[str], expected: list[list[int]]) -> None:
    """Equal, but where two ways to cut a word are equally likely: SentencePiece adds in 32 bits, and may take the other."""
    scores = [score for _, score in json.loads(ours.rust.model.__getstate__())["vocab"]]
    different = [(one.ids, other) for one, other in zip(ours.encode(texts), expected, strict=True) if one.ids != other]
    assert len(different) < 0.005 * len(texts)
    for one, other in different:
        assert sum(scores[i] for i in one) == pytest.approx(sum(scores[i] for i in other), abs=1e-4)


def test_a_space_belongs_to_the_mask_behind_it(tmp_path: Path) -> None:
    """RoBERTa was trained so; transformers forgets it of a folder that does not say it."""
    tokenizer = Tokenizer.load(folder_of("roberta", tmp_path / "silent"))
    (found,) = tokenizer.encode(["the <mask> is"], offsets=True)
    assert [tokenizer.piece(number) for number in found.ids[-3:]] == ["<mask>", "Ġis", "</s>"]
    assert found.offsets[-3] == (4, 10)
    told = Tokenizer.load(folder_of("roberta", tmp_path / "told", mask_token=MASK | {"lstrip": False}))
    assert told.encode(["the <mask> is"], offsets=True)[0].tokens[-4:] == ["Ġ", "<mask>", "Ġis", "</s>"]
    (written,) = Tokenizer.load(write(tokenizer.files(), tmp_path / "saved")).encode(["the <mask> is"], offsets=True)
    assert (written.ids, written.offsets) == (found.ids, found.offsets)


@pytest.mark.parametrize(("kind", "said", "start"), [("roberta", "Ġthe", "the"), ("albert", "▁the", "the"), ("xlm-roberta", "▁the", "the")])
def test_pieces_as_they_are_written(kind: str, said: str, start: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(folder_of(kind, tmp_path))
    assert tokenizer.spelled(said) == (start, False)
    assert tokenizer.spelled("ing") == ("ing", True)


def test_tokenizer_json_comes_first(tmp_path: Path) -> None:
    folder = folder_of("albert", tmp_path)
    rust = Tokenizer.load(folder_of("roberta", tmp_path / "other")).rust
    rust.save(str(folder / "tokenizer.json"))
    assert type(Tokenizer.load(folder).rust.model).__name__ == "BPE"


# ---- what the folder says


def test_other_names_for_the_special_pieces(tmp_path: Path) -> None:
    """As a text or an object, in either of two files."""
    folder = folder_of("roberta", tmp_path)
    vocabulary = json.loads((folder / "vocab.json").read_text())
    vocabulary = {{"<s>": "[CLS]", "<pad>": "[PAD]", "<mask>": "[HOLE]"}.get(piece, piece): number for piece, number in vocabulary.items()}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    names = {"cls_token": "[CLS]", "bos_token": "[CLS]", "pad_token": {"content": "[PAD]", "lstrip": False}, "mask_token": MASK | {"content": "[HOLE]"}}
    names["mask_token"] = {key: value for key, value in MASK.items() if key not in ("__type", "special")} | {"content": "[HOLE]"}
    (folder / "special_tokens_map.json").write_text(json.dumps(names))
    ours, theirs = Tokenizer.load(folder), theirs_of("roberta", folder)
    texts = [text.replace("<mask>", "[HOLE]").replace("<s>", "[CLS]") for text in harder(500)]
    assert first_difference(texts, ours.encode(texts, offsets=True), ask(theirs, texts)) is None
    assert ours.special("mask") == theirs.mask_token_id == len(vocabulary) - 1
    assert ours.special("cls") == theirs.cls_token_id == 0


ADDED: dict[str, dict[str, dict[str, Any]]] = {
    "a file of numbers": {"added_tokens.json": {"quux": 2_001, "Zorro": 2_000}},
    "a file of numbers, one of them special": {
        "added_tokens.json": {"quux": 2_001, "Zorro": 2_000},
        "tokenizer_config.json": {"additional_special_tokens": ["Zorro"]},
    },
    "objects in the settings": {
        "tokenizer_config.json": {
            "added_tokens_decoder": {
                "4": {"content": "[MASK]", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False, "special": True},
                "2000": {"content": "Zorro", "lstrip": False, "rstrip": True, "normalized": False, "single_word": True, "special": False},
                "2001": {"content": "quux", "lstrip": False, "rstrip": False, "normalized": True, "single_word": False, "special": False},
            }
        }
    },
    "a role's own piece": {"added_tokens.json": {"quux": 2_000, "Zorro": 2_001}, "tokenizer_config.json": {"mask_token": "quux"}},
    "a list in the settings": {"tokenizer_config.json": {"additional_special_tokens": ["Zorro", "quux"]}},
}


@pytest.mark.parametrize("files", ADDED.values(), ids=ADDED)
def test_what_a_folder_adds_to_its_vocabulary(files: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    folder = folder_of("albert", tmp_path)
    count = len(read_pieces(folder / "spiece.model").scores)
    for name, said in files.items():
        text = json.dumps(said).replace("2000", str(count)).replace("2001", str(count + 1))
        (folder / name).write_text(text, encoding="utf-8")
    ours, theirs = Tokenizer.load(folder), theirs_of("albert", folder)
    draw = random.Random(0)
    texts = ["".join(draw.choices(["quux", "Zorro", "zorro", "QUUX", " ", "the", "[MASK]", "quuxes", "잔다", "x"], k=8)) for _ in range(500)]
    assert first_difference(texts, ours.encode(texts, offsets=True), ask(theirs, texts)) is None
    assert ours.size == count + 2
    (tmp_path / "saved").mkdir()
    for name, text in ours.files().items():
        (tmp_path / "saved" / name).write_text(text, encoding="utf-8")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert first_difference(texts, ours.encode(texts, offsets=True), ask(again, texts)) is None


# ---- files


MODELS = ["bert", "roberta", "albert", "xlm-roberta", "electra", "distilbert", "modernbert"]


@pytest.mark.parametrize("kind", ["roberta", "albert", "xlm-roberta", "bert"])
@pytest.mark.parametrize(("model", "named"), [*((model, True) for model in MODELS), ("roberta", False), ("distilbert", False)])
def test_files_load_in_transformers_beside_any_model(kind: str, model: str, named: bool, vocabulary: list[str], tmp_path: Path) -> None:
    """Whatever tokenizer its class says, and whatever its model's usual one is."""
    if kind == "bert":
        (tmp_path / "tok").mkdir()
        (tmp_path / "tok" / "vocab.txt").write_text("".join(piece + "\n" for piece in vocabulary), encoding="utf-8")
        usual = "BertTokenizer" if model != "distilbert" else "DistilBertTokenizer"
        (tmp_path / "tok" / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": usual} if named else {}))
        ours = Tokenizer.load(tmp_path / "tok")
    else:
        ours = Tokenizer.load(folder_of(kind, tmp_path / "tok", **({"tokenizer_class": CLASSES[kind], "model_max_length": 512} if named else {})))
    out = write(ours.files(128, segments=False), tmp_path / "saved")
    (out / "config.json").write_text(json.dumps({"model_type": model}))
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    texts = harder(200)
    found = ours.encode(texts, offsets=True)
    assert first_difference(texts, found, ask(theirs, texts)) is None
    assert [one.ids for one in Tokenizer.load(out).encode(texts)] == [one.ids for one in found]
    assert set(theirs("the cat")) == {"input_ids", "attention_mask"}, "a model without segments would stumble over them"
    assert (theirs.mask_token_id, theirs.pad_token_id, theirs.model_max_length) == (ours.special("mask"), ours.special("pad"), 128)
    assert (theirs.cls_token_id, theirs.sep_token_id, theirs.unk_token_id) == (ours.special("cls"), ours.special("sep"), ours.special("unk"))


def test_files_say_of_segments_what_the_folder_says(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(folder_of("albert", tmp_path))
    assert "model_input_names" not in json.loads(tokenizer.files()["tokenizer_config.json"])
    assert json.loads(tokenizer.files(segments=False)["tokenizer_config.json"])["model_input_names"] == ["input_ids", "attention_mask"]


# ---- long texts


@pytest.mark.parametrize("kind", CLASSES)
def test_two_long_texts_are_cut_as_if_whole(kind: str, tmp_path: Path) -> None:
    """Their rest is left out before Rust sees it; no piece changes, with words or without."""
    tokenizer = Tokenizer.load(folder_of(kind, tmp_path))
    draw = random.Random(0)
    words = [" ".join(draw.choices(lines(), k=20)) for _ in range(3)]
    packed, spread = ["".join(text.split()) for text in words], [text.replace(" ", "   ") for text in words]
    texts = [*words, *packed, *spread, "가나다라 " * 150, "ㅋㅋㅋ" * 300, "字" * 900, "고양이가" * 250, "ﬁ①é " * 200]
    pairs = [(draw.choice(texts), draw.choice(texts)) for _ in range(12)]
    for length in (33, 64):
        found = tokenizer.encode(pairs, length=length)
        tokenizer.rust.enable_truncation(length, strategy="longest_first")
        assert [one.ids for one in found] == [tokenizer.rust.encode(*pair).ids for pair in pairs]


@pytest.mark.parametrize("kind", CLASSES)
def test_two_long_texts_without_spaces_take_no_memory_for_their_rest(kind: str, tmp_path: Path) -> None:
    """To these tokenizers a text without spaces is one word: a cut at the end of a word would keep it all."""
    tokenizer = Tokenizer.load(folder_of(kind, tmp_path))
    first, second = "the.cat.sat." * 5_000, "a.dog.ran." * 5_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (cut,) = tokenizer.encode([(first, second)], length=32)
    assert len(cut.ids) == 32
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000, "kilobytes"


# ---- errors


def test_no_order_of_pieces(tmp_path: Path) -> None:
    folder = folder_of("roberta", tmp_path)
    (folder / "merges.txt").unlink()
    with pytest.raises(UserError, match=r"merges\.txt is missing, without which vocab\.json .*; copy it from where vocab\.json came$"):
        Tokenizer.load(folder)


WRONG: dict[str, tuple[str, dict[str, bytes], str]] = {
    "three pieces a line": ("roberta", {"merges.txt": b"#version: 0.2\nt h e\n"}, r"merges\.txt should hold two pieces a line, one line is 't h e'; copy"),
    "not utf-8": ("roberta", {"merges.txt": "é à\n".encode("latin-1")}, r"merges\.txt is not UTF-8 \(byte 0\); copy"),
    "merges of another": ("roberta", {"merges.txt": b"zzq qqz\n"}, r"vocab\.json does not go with its merges\.txt .*zzq.*; copy both"),
    "a list for a vocabulary": ("roberta", {"vocab.json": b"[]"}, r"vocab\.json should hold a JSON object"),
    "texts for numbers": ("roberta", {"vocab.json": b'{"a": "b"}'}, r"vocab\.json does not go"),
    "numbers below zero": ("roberta", {"vocab.json": b'{"a": -1}'}, r"vocab\.json does not go"),
    "a vocabulary cut short": ("roberta", {"vocab.json": b'{"a": '}, r"vocab\.json is not JSON"),
    "no mask": (
        "roberta",
        {"vocab.json": b'{"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}', "merges.txt": b""},
        r"the vocabulary lacks <mask>, its mask token: add",
    ),
    "a mask that is not there": ("albert", {"tokenizer_config.json": b'{"mask_token": "<hole>"}'}, r"the vocabulary lacks <hole>, its mask token: add"),
    "casing as a text": ("albert", {"tokenizer_config.json": b'{"do_lower_case": "yes"}'}, r"do_lower_case is 'yes', it should be true or false"),
    "a role as a number": ("albert", {"tokenizer_config.json": b'{"sep_token": 5}'}, r"sep_token is 5, it should be a text"),
    "a space as a number": ("xlm-roberta", {"tokenizer_config.json": b'{"add_prefix_space": 1}'}, r"add_prefix_space is 1, it should be"),
    "another class": (
        "albert",
        {"tokenizer_config.json": b'{"tokenizer_class": "T5TokenizerFast"}'},
        r"says T5Tokenizer, whose rules for spiece\.model",
    ),
    "a class of words": ("roberta", {"tokenizer_config.json": b'{"tokenizer_class": "BertTokenizer"}'}, r"says BertTokenizer, whose rules for vocab\.json"),
    "additions by no number": ("albert", {"added_tokens.json": b'{"quux": "x"}'}, r"added_tokens\.json should number its pieces"),
    "additions elsewhere": ("albert", {"added_tokens.json": b'{"quux": 7}'}, r"numbers quux 7, its vocabulary makes it \d+; save a tokenizer\.json"),
    "additions of another kind": ("albert", {"tokenizer_config.json": b'{"added_tokens_decoder": {"x": "y"}}'}, r"an object of numbered pieces"),
    "additions without a text": ("albert", {"tokenizer_config.json": b'{"added_tokens_decoder": {"5": 6}}'}, r"added_tokens_decoder is 6, it should be a text"),
    "additions that are no list": ("albert", {"tokenizer_config.json": b'{"additional_special_tokens": 6}'}, r"additional_special_tokens is 6, it should be"),
    "an empty model": ("albert", {"spiece.model": b""}, r"spiece\.model is cut short or damaged; copy it again from where it came$"),
    "a pointer to a model": (
        "albert",
        {"spiece.model": b"version https://git-lfs.github.com/spec/v1\n"},
        r"spiece\.model is cut short or damaged",
    ),
}


@pytest.mark.parametrize(("kind", "files", "said"), WRONG.values(), ids=WRONG)
def test_a_folder_that_is_wrong(kind: str, files: dict[str, bytes], said: str, tmp_path: Path) -> None:
    folder = folder_of(kind, tmp_path)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    with pytest.raises(UserError, match=said):
        Tokenizer.load(folder)


@pytest.mark.parametrize(("algorithm", "said"), [("bpe", "BPE"), ("word", "word"), ("char", "character")])
def test_other_models_of_sentencepiece(algorithm: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(trained(algorithm, vocab_size=500))
    with pytest.raises(UserError, match=rf"is SentencePiece's, but a {said} model, and only Unigram .*; save a tokenizer\.json with transformers$"):
        Tokenizer.load(tmp_path)


def test_a_model_that_is_laid_out_otherwise(tmp_path: Path) -> None:
    """fairseq's numbers leave out the first three pieces; were they words, they would be lost in silence."""
    (tmp_path / "sentencepiece.bpe.model").write_bytes(trained(unk_id=0, bos_id=-1, eos_id=-1, pad_id=-1))
    with pytest.raises(UserError, match=r"sentencepiece\.bpe\.model does not begin with <unk>, <s> and </s>, as XLM-R's does; save a tokenizer\.json"):
        Tokenizer.load(tmp_path)


# ---- damage


def damaged(whole: bytes) -> Iterator[bytes]:
    """Cut anywhere, most of all where one part ends; other bytes here and there; other bytes altogether."""
    draw = random.Random(0)
    model = proto.ModelProto.FromString(whole)
    places = [len(whole) - len(model.normalizer_spec.SerializeToString()) - extra for extra in range(-3, 9)]
    places += [draw.randrange(len(whole)) for _ in range(200)] + list(range(1, 60)) + [len(whole) - i for i in range(1, 20)]
    yield from (whole[:place] for place in places)
    for _ in range(200):
        other = bytearray(whole)
        for _ in range(draw.choice([1, 1, 5, 500])):
            other[draw.randrange(len(other))] = draw.randrange(256)
        yield bytes(other)
    head = len(whole) - len(model.normalizer_spec.precompiled_charsmap)
    for _ in range(100):  # in what spells the text before it is cut, where Rust would panic
        other = bytearray(whole)
        for _ in range(draw.choice([1, 30, 3_000])):
            other[draw.randrange(head, len(other))] = draw.randrange(256)
        yield bytes(other)
    yield from (draw.randbytes(draw.randrange(1, 5_000)) for _ in range(200))


@pytest.mark.parametrize("kind", ["albert", "xlm-roberta"])
def test_damaged_models_are_one_sentence_or_work(kind: str, tmp_path: Path) -> None:
    """A byte may change and leave a model that is whole, and worse; no file makes it crash, hang or panic."""
    folder, texts = folder_of(kind, tmp_path), hard(300, seed=9)
    (path,) = folder.glob("*.model")
    whole, said, counts = path.read_bytes(), f"{path} is cut short or damaged; copy it again from where it came", {True: 0, False: 0}
    for data in damaged(whole):
        path.write_bytes(data)
        found = sentence(folder, texts)
        counts[found is None] += 1
        if len(data) < len(whole) and whole.startswith(data):
            assert found == said, f"cut at {len(data)} of {len(whole)}"
        assert found is None or found == said or any(why in found for why in ("vocabulary lacks", "only Unigram", "does not begin")), found
    assert min(counts.values()) > 50, counts


def sentence(folder: Path, texts: list[str]) -> str | None:
    """What a person is told of that folder; None where its tokenizer works."""
    try:
        Tokenizer.load(folder).encode(texts)
    except UserError as error:
        return str(error)
    return None


def table(model: Any, units: list[int], texts: bytes = b"a\0") -> None:
    """SentencePiece's table of spellings: a double array, and the texts that it points to."""
    model.normalizer_spec.precompiled_charsmap = struct.pack(f"<{1 + len(units)}I", 4 * len(units), *units) + texts


PIECES: dict[str, Any] = {
    "an empty piece": lambda model: model.pieces.add(piece="", score=-1.0),
    "a piece twice": lambda model: model.pieces.add(piece="▁the", score=-1.0),
    "a score that is none": lambda model: model.pieces.add(piece="zzz", score=float("nan")),
    "a score without end": lambda model: model.pieces.add(piece="zzz", score=float("-inf")),
    "two unknown pieces": lambda model: model.pieces.add(piece="zzz", type=2),
    "no unknown piece": lambda model: setattr(model.pieces[1], "type", 1),
    "no pieces": lambda model: model.ClearField("pieces"),
    "no trainer": lambda model: model.ClearField("trainer_spec"),
    "no normalizer": lambda model: model.ClearField("normalizer_spec"),
    "a table of nothing": lambda model: table(model, []),
    "a table of one step": lambda model: table(model, [0]),
    "a table that points beyond it": lambda model: table(model, [5 << 18] * 256),
    "an answer beyond the last": lambda model: table(model, [256, *range(2, 257)]),
    "an answer inside a letter": lambda model: table(model, [256, *[0] * 255], "é".encode()[1:] + b"\0"),
}


@pytest.mark.parametrize("change", PIECES.values(), ids=PIECES)
def test_a_model_that_no_trainer_writes(change: Any, tmp_path: Path) -> None:
    folder = folder_of("albert", tmp_path)
    model = proto.ModelProto.FromString(albert())
    change(model)
    (folder / "spiece.model").write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match=r"cut short or damaged"):
        Tokenizer.load(folder)


def test_a_model_without_rules_of_spelling(tmp_path: Path) -> None:
    """Trained with normalization_rule_name=identity."""
    data = trained(unk_id=0, bos_id=1, eos_id=2, pad_id=-1, normalization_rule_name="identity")
    (tmp_path / "sentencepiece.bpe.model").write_bytes(data)
    texts = harder(1_000)
    assert first_difference(texts, Tokenizer.load(tmp_path).encode(texts, offsets=True), ask(theirs_of("xlm-roberta", tmp_path), texts)) is None


def test_damaged_spelling_in_a_tokenizer_json_is_one_sentence(tmp_path: Path) -> None:
    """Rust panics at the first text that meets the damage."""
    out = write(Tokenizer.load(folder_of("xlm-roberta", tmp_path / "tok")).files(), tmp_path / "saved")
    whole = json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))
    rules = whole["normalizer"]["normalizers"] if "normalizers" in whole["normalizer"] else [whole["normalizer"]]
    charsmap = bytearray(base64.b64decode(rules[0]["precompiled_charsmap"]))
    size = struct.unpack_from("<I", charsmap)[0]
    charsmap[4 : 4 + size] = b"\xff" * 3 + b"\x7f" + bytes(charsmap[8 : 4 + size])  # the first step leads far behind the end
    rules[0]["precompiled_charsmap"] = base64.b64encode(bytes(charsmap)).decode()
    (out / "tokenizer.json").write_text(json.dumps(whole), encoding="utf-8")
    with pytest.raises(UserError, match=r"^[^\n]+copy (it|them) again from where (it|they) came$"):
        Tokenizer.load(out).encode(harder(50))
