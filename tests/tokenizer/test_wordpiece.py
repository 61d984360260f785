"""Pieces as transformers' BertTokenizer has them, on lines made to be hard; files that it loads; every error a sentence."""

from __future__ import annotations

import json
import random
import resource
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer as Rust

from conftest import sentences
from unmask.errors import UserError
from unmask.tokenizer import Encoding, Tokenizer
from unmask.tokenizer.wordpiece import read_vocabulary

RANGES = {
    "ascii": (0x20, 0x7E),
    "control": (0x00, 0x1F),
    "more control": (0x7F, 0x9F),
    "latin": (0xA0, 0x24F),
    "accents": (0x300, 0x36F),
    "greek": (0x370, 0x3FF),
    "cyrillic": (0x400, 0x4FF),
    "hebrew": (0x591, 0x5F4),
    "arabic": (0x600, 0x6FF),
    "devanagari": (0x900, 0x97F),
    "thai": (0xE01, 0xE5B),
    "jamo": (0x1100, 0x11FF),
    "more latin": (0x1E00, 0x1EFF),
    "punctuation, zero width, marks of direction": (0x2000, 0x206F),
    "symbols": (0x20A0, 0x27BF),
    "kana": (0x3000, 0x30FF),
    "old jamo": (0x3130, 0x318F),
    "cjk": (0x4E00, 0x9FFF),
    "cjk a": (0x3400, 0x4DBF),
    "hangul": (0xAC00, 0xD7A3),
    "private": (0xE000, 0xE0FF),
    "compatibility": (0xF900, 0xFAFF),
    "half width": (0xFF00, 0xFFEF),
    "noncharacters": (0xFFF0, 0xFFFF),
    "gothic": (0x10330, 0x1034A),
    "deseret, which has case": (0x10400, 0x1044F),
    "mathematical": (0x1D400, 0x1D7FF),
    "emoji": (0x1F300, 0x1FAFF),
    "cjk b": (0x20000, 0x2A6DF),
    "cjk compatibility": (0x2F800, 0x2FA1F),
    "tags": (0xE0000, 0xE007F),
    "the last plane": (0x10FF00, 0x10FFFF),
}
WORDS = [
    *"the unaffable cat's résumé naïve Ελλάς ΣΑΣ İstanbul STRASSE straße ﬁne Å Å e\u0301 가나다 각 ᄀ\u1161\u11a8 ไทย".split(),
    *[
        "1234567890",
        "3.14",
        "1,000,000",
        "[MASK]",
        "[SEP]",
        "[CLS]",
        "[PAD]",
        "[UNK]",
        "[mask]",
        "[MASK]s",
        "un[MASK]able",
        "[[MASK]]",
        "##ing",
        "don't",
        "A.B.C",
    ],
    *[
        "👩‍👩‍👧‍👦",
        "🏳️‍🌈",
        "👍🏽",
        "🇰🇷",
        "\u200b",
        "a\u200db",
        "\u202eevil\u202c",
        "\ufeff",
        "\x00",
        "a\x00b",
        "\ufffd",
        "\u00ad",
        "co\u00adop",
        "\u2028",
        "\u0085",
        "\t",
        "  ",
        "\r\n",
    ],
    *[
        "x" * 99,
        "x" * 100,
        "x" * 101,
        "é" * 60,
        "字" * 120,
        "." * 130,
        "a" * 5_000,
        "https://ex-am.ple/?q=1&r=%20#top",
        "$5,00€",
        "C++",
        "#1",
        "mañana",
        "MAÑANA",
    ],
]
RULES: dict[str, dict[str, Any]] = {
    "uncased": {},
    "cased": {"do_lower_case": False},
    "uncased, accents kept": {"strip_accents": False},
    "cased, accents stripped": {"do_lower_case": False, "strip_accents": True},
    "uncased, chinese together": {"tokenize_chinese_chars": False},
    "cased, chinese together, accents stripped": {"do_lower_case": False, "tokenize_chinese_chars": False, "strip_accents": True},
}


@cache
def hard(count: int, seed: int = 0) -> list[str]:
    """Lines of every script and none: each a few runs of one range, or of anything, or a word that has tripped somebody."""
    draw = random.Random(seed)
    ranges = list(RANGES.values())

    def run() -> str:
        kind = draw.random()
        if kind < 0.35:
            return draw.choice(WORDS)
        if kind < 0.45:
            points = [draw.randrange(0x110000) for _ in range(draw.randint(1, 8))]
            return "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)
        low, high = draw.choice(ranges)
        return "".join(chr(draw.randint(low, high)) for _ in range(draw.randint(1, 9)))

    made = [draw.choice(["", " ", " ", "-"]).join(run() for _ in range(draw.randint(1, 7))) for _ in range(count - 3)]
    return ["", " ", "\n\t", *made]


@pytest.fixture(scope="module")
def pieces(vocabulary: list[str]) -> list[str]:
    """BERT's own and, so that not all of the hard lines is [UNK], letters of every range with and without ##."""
    draw = random.Random(1)
    letters = {chr(draw.randint(low, high)) for low, high in RANGES.values() for _ in range(400)} | {chr(point) for point in range(0xA1, 0x250)}
    letters = {one for one in letters if not one.isspace() and one.isprintable()}
    more = [*letters, *(f"##{one}" for one in letters), "[mask", "Ελλάς", "##ΑΣ", "MA", "##Ñ", "가나다"]
    return [*vocabulary, *sorted(set(more) - set(vocabulary))]


def folder_of(folder: Path, pieces: Sequence[str], **settings: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in pieces), encoding="utf-8", newline="\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", "model_max_length": 512, **settings}))
    return folder


def theirs_of(folder: Path) -> Any:
    return transformers.BertTokenizer.from_pretrained(folder)


def first_difference(inputs: Sequence[Any], ours: Sequence[Encoding], theirs: Any) -> str | None:
    """Ids, segments and offsets of each, in order; what differs first, in words."""
    assert len(ours) == len(theirs["input_ids"])
    for i, one in enumerate(ours):
        for name, found, expected in (
            ("ids", one.ids, theirs["input_ids"][i]),
            ("type_ids", one.type_ids, theirs["token_type_ids"][i]),
            ("offsets", one.offsets, theirs["offset_mapping"][i]),
        ):
            if list(found) != list(expected):
                return f"{name} of {inputs[i] if len(inputs) == len(ours) else i!r}: {found} and not {expected}"
    return None


def ask(theirs: Any, *inputs: list[str], **options: Any) -> Any:
    return theirs(*inputs, return_offsets_mapping=True, return_token_type_ids=True, verbose=False, **options)


# ---- the pieces


@pytest.mark.parametrize(("rules", "count"), [(rules, 10_000 if i < 2 else 2_000) for i, rules in enumerate(RULES.values())], ids=RULES)
def test_hard_lines_are_theirs(rules: dict[str, Any], count: int, pieces: list[str], tmp_path: Path) -> None:
    folder, lines = folder_of(tmp_path / "tok", pieces, **rules), hard(count)
    ours = Tokenizer.load(folder)
    encoded = ours.encode(lines, offsets=True)
    assert first_difference(lines, encoded, ask(theirs_of(folder), lines)) is None
    assert [one.ids for one in ours.encode(lines[:2_000])] == [one.ids for one in encoded[:2_000]], "the fast way without offsets"
    unknown = sum(one.ids.count(ours.special("unk")) for one in encoded) / sum(map(len, encoded))
    assert unknown < 0.5, "the test says something only where most pieces are known"


@pytest.mark.parametrize("rules", [RULES["uncased"], RULES["cased"]], ids=["uncased", "cased"])
def test_pairs_are_theirs(rules: dict[str, Any], pieces: list[str], tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "tok", pieces, **rules)
    one, two = hard(1_000, seed=3), hard(1_000, seed=4)
    pairs = list(zip(one, two, strict=True))
    found = Tokenizer.load(folder).encode(pairs, offsets=True)
    assert first_difference(pairs, found, ask(theirs_of(folder), one, two)) is None
    assert {number for encoding in found for number in encoding.type_ids} == {0, 1}


def test_offsets_are_characters_of_the_text(pieces: list[str], tmp_path: Path) -> None:
    """Not bytes: the spelling at an offset is the piece, behind letters of two, three and four bytes."""
    ours = Tokenizer.load(folder_of(tmp_path / "tok", pieces, do_lower_case=False))
    text = "é 가나다 👍 the cat"
    [found] = ours.encode([text], offsets=True)
    spelt = {text[start:end] for start, end in found.offsets[1:-1]}
    assert {"the", "cat", "가나다"} <= spelt
    assert found.offsets[0] == found.offsets[-1] == (0, 0)


def test_special_pieces_typed_in_a_text_are_special(pieces: list[str], tmp_path: Path) -> None:
    ours = Tokenizer.load(folder_of(tmp_path / "tok", pieces))
    [found] = ours.encode(["a [MASK] and [SEP] but no [mask]"])
    assert found.ids.count(ours.special("mask")) == 1
    assert found.ids.count(ours.special("sep")) == 2
    assert ours.piece(ours.special("mask")) == "[MASK]"
    assert ours.decode(found.ids[:3]) == "[CLS] a [MASK]"


def test_order_and_number_are_kept(pieces: list[str], tmp_path: Path) -> None:
    ours = Tokenizer.load(folder_of(tmp_path / "tok", pieces))
    lines = hard(300, seed=8)
    assert [one.ids for one in ours.encode(lines)] == [ours.encode([line])[0].ids for line in lines]
    assert ours.encode([]) == []


# ---- cutting


@pytest.mark.parametrize(("cut", "length", "stride"), [("only_second", n, s) for n, s in ((48, 0), (64, 16), (100, 40), (512, 128))])
def test_windows_over_a_second_text_are_theirs(cut: str, length: int, stride: int, pieces: list[str], tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "tok", pieces)
    one, two = sentences(60, longest=12, seed=1), sentences(60, longest=400, seed=2)
    check_windows(folder, one, two, length=length, stride=stride, cut=cut)


@pytest.mark.parametrize(("length", "stride"), [(3, 0), (4, 1), (5, 2), (8, 3), (17, 0), (64, 32), (511, 128), (512, 0)])
def test_windows_over_one_text_are_theirs(length: int, stride: int, pieces: list[str], tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "tok", pieces)
    check_windows(folder, [*sentences(40, longest=300, seed=1), *hard(100, seed=6)], None, length=length, stride=stride, cut="longest_first")


@pytest.mark.parametrize("length", [*range(5, 40), 64, 100, 400])
def test_pairs_cut_longest_first_are_theirs(length: int, pieces: list[str], tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "tok", pieces)
    one, two = (sentences(40, longest=30, seed=seed) for seed in (1, 2))
    ours = Tokenizer.load(folder).encode(list(zip(one, two, strict=True)), length=length, offsets=True)
    assert max(map(len, ours)) <= length
    theirs = ask(theirs_of(folder), one, two, truncation="longest_first", max_length=length)
    assert first_difference(one, ours, theirs) is None


def check_windows(folder: Path, one: list[str], two: list[str] | None, *, length: int, stride: int, cut: str) -> None:
    inputs: list[Any] = one if two is None else list(zip(one, two, strict=True))
    encoded = Tokenizer.load(folder).encode(inputs, length=length, stride=stride, cut=cut, offsets=True)
    windows = [part for encoding in encoded for part in (encoding, *encoding.overflowing)]
    theirs = ask(theirs_of(folder), *([one] if two is None else [one, two]), truncation=cut, max_length=length, stride=stride, return_overflowing_tokens=True)
    assert len(windows) > len(encoded) or length >= 511
    assert max(map(len, windows)) <= length
    assert first_difference(inputs, windows, theirs) is None
    owners = [i for i, encoding in enumerate(encoded) for _ in (encoding, *encoding.overflowing)]
    assert owners == list(theirs["overflow_to_sample_mapping"])


def test_one_cut_does_not_outlast_its_call(pieces: list[str], tmp_path: Path) -> None:
    ours = Tokenizer.load(folder_of(tmp_path / "tok", pieces))
    before = [len(one) for one in ours.encode(["the cat sat on the mat"])]
    assert len(ours.encode(["the cat sat on the mat"], length=4)[0]) == 4
    assert [len(one) for one in ours.encode(["the cat sat on the mat"])] == before


def test_cutting_and_padding_of_the_file_are_ignored(pieces: list[str], tmp_path: Path) -> None:
    """MiniLM's own tokenizer.json cuts at 128 and pads; how long a text may be is the card's to say."""
    folder = folder_of(tmp_path / "tok", pieces)
    lines = [*sentences(20, longest=60), "cat"]
    expected = [one.ids for one in Tokenizer.load(folder).encode(lines)]
    rust = Tokenizer.load(folder).rust
    rust.enable_truncation(8, stride=2)
    rust.enable_padding(length=40)
    rust.save(str(folder / "tokenizer.json"))
    assert len(Rust.from_file(str(folder / "tokenizer.json")).encode("cat")) == 40
    found = Tokenizer.load(folder).encode(lines)
    assert [one.ids for one in found] == expected
    assert not any(one.overflowing for one in found)


# ---- half characters


def test_lone_surrogates_are_read_as_one_unknown_letter(pieces: list[str], tmp_path: Path) -> None:
    """With one warning for all, and offsets still counted in the text that was given."""
    ours = Tokenizer.load(folder_of(tmp_path / "tok", pieces))
    texts = ["the cat", "the \ud83d cat sat", "\udc00", "mat"]
    with pytest.warns(UserWarning, match=r"^2 of 4 texts .* number 1\b.*U\+FFFD") as caught:
        found = ours.encode(texts, offsets=True)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clean = ours.encode(["the cat", "the \ufffd cat sat", "\ufffd", "mat"], offsets=True)
    assert [(one.ids, one.offsets) for one in found] == [(one.ids, one.offsets) for one in clean]
    assert [texts[1][start:end] for start, end in found[1].offsets[1:-1]][-2:] == ["cat", "sat"]


def test_lone_surrogates_in_pairs(pieces: list[str], tmp_path: Path) -> None:
    ours = Tokenizer.load(folder_of(tmp_path / "tok", pieces))
    with pytest.warns(UserWarning, match="1 of 2"):
        found = ours.encode([("the cat", "sat \ud83d here"), ("a", "b")], offsets=True)
    assert found[0].ids == ours.encode([("the cat", "sat \ufffd here")])[0].ids


def test_whole_emoji_are_no_surrogates(pieces: list[str], tmp_path: Path) -> None:
    Tokenizer.load(folder_of(tmp_path / "tok", pieces)).encode(["👍", "\U0010ffff"])  # a warning would be an error


# ---- files


def write(files: dict[str, str], folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names or files:
        (folder / name).write_text(files[name], encoding="utf-8", newline="\n")
    return folder


@pytest.mark.parametrize("names", [(), ("vocab.txt", "tokenizer_config.json", "special_tokens_map.json"), ("tokenizer.json", "tokenizer_config.json")], ids=str)
@pytest.mark.parametrize("rules", [RULES["uncased"], RULES["cased, accents stripped"]], ids=["uncased", "cased"])
def test_files_load_in_transformers(rules: dict[str, Any], names: tuple[str, ...], pieces: list[str], tmp_path: Path) -> None:
    """All of the files, or only the new or the old ones."""
    ours = Tokenizer.load(folder_of(tmp_path / "tok", pieces, **rules))
    folder = write(ours.files(300), tmp_path / "saved", *names)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    lines = hard(1_000, seed=5)
    encoded = ours.encode(lines, offsets=True)
    assert first_difference(lines, encoded, ask(theirs, lines)) is None
    assert theirs.model_max_length == 300
    assert {role: getattr(theirs, f"{role}_token_id") for role in ("mask", "pad", "cls", "sep", "unk")} == {
        role: ours.special(role) for role in ("mask", "pad", "cls", "sep", "unk")
    }
    assert [one.ids for one in Tokenizer.load(folder).encode(lines)] == [one.ids for one in encoded]


def test_files_of_a_folder_are_its_own(minilm: Path, tmp_path: Path) -> None:
    """The real thing: what was loaded and written is what was there."""
    ours = Tokenizer.load(minilm)
    folder = write(ours.files(), tmp_path / "saved")
    assert (folder / "vocab.txt").read_bytes() == (minilm / "vocab.txt").read_bytes()
    again = Tokenizer.load(folder)
    assert ours.size == again.size == 30_522
    lines = hard(500, seed=7)
    assert [one.ids for one in ours.encode(lines)] == [one.ids for one in again.encode(lines)]


def test_files_do_not_hang_on_what_was_encoded(pieces: list[str], tmp_path: Path) -> None:
    """Truncation is a state of the Rust object; it must not get into the file, where it would cut every text of whoever loads it."""
    ours = Tokenizer.load(folder_of(tmp_path / "tok", pieces))
    before = ours.files()
    ours.encode(["the cat sat on the mat"], length=5, stride=1)
    assert json.loads(ours.files()["tokenizer.json"])["truncation"] is None
    assert ours.files() == before


def test_a_piece_named_twice(tmp_path: Path) -> None:
    """The later line counts, and no other piece moves, in the files written too."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "the", "cat", "mat"]
    ours = Tokenizer.load(folder_of(tmp_path / "tok", pieces))
    ids = [2, 6, 7, 8, 3]
    assert ours.encode(["the cat mat"])[0].ids == ids
    assert ours.size == 9
    files = ours.files()
    for i, names in enumerate([(), ("vocab.txt", "tokenizer_config.json")]):
        assert Tokenizer.load(write(files, tmp_path / str(i), *names)).encode(["the cat mat"])[0].ids == ids


def test_other_special_pieces(tmp_path: Path) -> None:
    """Named in tokenizer_config.json, as a string or written out as an object."""
    settings = {
        "unk_token": "<unk>",
        "pad_token": {"content": "<pad>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "__type": "AddedToken"},
        "cls_token": "<s>",
        "sep_token": "</s>",
        "mask_token": "<mask>",
        "do_lower_case": False,
    }
    folder = folder_of(tmp_path / "tok", ["<pad>", "<s>", "</s>", "<unk>", "cat", "<mask>"], **settings)
    ours = Tokenizer.load(folder)
    assert ours.encode(["cat <mask> dog"])[0].ids == [1, 4, 5, 3, 2]
    assert [ours.special(role) for role in ("mask", "pad", "cls", "sep", "unk")] == [5, 0, 1, 2, 3]
    saved = write(ours.files(), tmp_path / "saved")
    assert transformers.AutoTokenizer.from_pretrained(saved)("cat <mask> dog")["input_ids"] == [1, 4, 5, 3, 2]
    assert Tokenizer.load(saved).special("mask") == 5


def test_line_ends_of_windows(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\r\n[UNK]\r\ncat\r\n")
    assert read_vocabulary(tmp_path / "vocab.txt") == {"[PAD]": 0, "[UNK]": 1, "cat": 2}


def test_lines_end_at_newlines_only(tmp_path: Path) -> None:
    """U+2028 and U+0085 are pieces of some vocabularies; splitlines() would move every id after them."""
    (tmp_path / "vocab.txt").write_text("[PAD]\n\u2028\n\u0085\n\x0c\ncat\n", encoding="utf-8")
    assert read_vocabulary(tmp_path / "vocab.txt") == {"[PAD]": 0, "\u2028": 1, "\u0085": 2, "\x0c": 3, "cat": 4}


def test_lowercases(pieces: list[str], tmp_path: Path) -> None:
    assert Tokenizer.load(folder_of(tmp_path / "one", pieces)).lowercases
    assert not Tokenizer.load(folder_of(tmp_path / "two", pieces, do_lower_case=False)).lowercases


# ---- errors


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no tokenizer: put tokenizer\.json or vocab\.txt"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("text", ["{", "", '{"version": "1.0"}', "[1]", "\ud83d"], ids=repr)
def test_a_bad_tokenizer_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("text", ["{", "", "[1]", '"a"', "\ud83d"], ids=repr)
def test_bad_settings(text: str, pieces: list[str], tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "tok", pieces)
    (folder / "tokenizer_config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError, match=r"tokenizer_config\.json"):
        Tokenizer.load(folder)


@pytest.mark.parametrize("role", ["unk", "sep", "pad", "cls", "mask"])
def test_a_missing_special_piece(role: str, tmp_path: Path) -> None:
    token = f"[{role.upper()}]"
    folder = folder_of(tmp_path / "tok", [one for one in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat") if one != token])
    with pytest.raises(UserError, match=rf"lacks \[{role.upper()}\], its {role} token: add it, or name another"):
        Tokenizer.load(folder)


def test_a_role_that_a_file_does_not_have(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "tok", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat"])
    rust = Rust.from_str(Tokenizer.load(folder).files()["tokenizer.json"].replace("[MASK]", "[HOLE]"))
    rust.save(str(folder / "tokenizer.json"))
    with pytest.raises(UserError, match=r"no mask piece; name it in tokenizer_config\.json as mask_token"):
        Tokenizer.load(folder).special("mask")


def test_a_role_set_to_null(pieces: list[str], tmp_path: Path) -> None:
    """tokenizer_config.json may say that there is no such piece; BERT's own is then meant, or it is said."""
    folder = folder_of(tmp_path / "tok", pieces, mask_token=None)
    try:
        ours = Tokenizer.load(folder)
    except UserError:
        return
    assert ours.special("mask") == pieces.index("[MASK]")


def test_a_vocabulary_that_is_not_utf8(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "tok", [])
    (folder / "vocab.txt").write_bytes("[PAD]\ncafé\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"vocab\.txt is not UTF-8 \(byte 9\); save it as UTF-8"):
        Tokenizer.load(folder)


@pytest.mark.parametrize("length", [0, 1, 2])
def test_too_small_a_length(length: int, pieces: list[str], tmp_path: Path) -> None:
    ours = Tokenizer.load(folder_of(tmp_path / "tok", pieces))
    with pytest.raises(UserError, match=rf"length of {length} pieces leaves no room beside the special ones; ask for 3 or more"):
        ours.encode(["the cat"], length=length)
    assert len(ours.encode(["the cat"], length=3)[0]) == 3


CASES: dict[str, dict[str, Any]] = {
    "a pair, longest first": {"length": 3},
    "the first text alone fills it": {"length": 8, "cut": "only_second"},
    "a stride as long as the room": {"length": 8, "stride": 6},
    "a stride as long as a half": {"length": 8, "stride": 3},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_too_small_a_length_for_a_pair(options: dict[str, Any], pieces: list[str], tmp_path: Path) -> None:
    """The Rust library raises bare Exception, panics, or gives windows longer than asked for."""
    ours = Tokenizer.load(folder_of(tmp_path / "tok", pieces))
    with pytest.raises(UserError, match=r"\d"):
        ours.encode([("the cat sat on the mat", "and the dog ran")], **options)


def test_two_long_texts_take_no_memory_for_their_rest(minilm: Path) -> None:
    """Rust would keep every window of one with every window of the other: 2 GB for these."""
    tokenizer = Tokenizer.load(minilm)
    first, second = ("unbelievable riverbanks, " * 10_000), ("고양이가 잔다 " * 10_000)
    resource_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (cut,) = tokenizer.encode([(first, second)], length=128)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resource_before < 300_000, "kilobytes"
    whole = [one.ids[1:-1] for one in tokenizer.encode([first, second])]
    assert cut.ids == [101, *whole[0][:62], 102, *whole[1][:63], 102]
    short = tokenizer.encode([("a cat", second), (first, "a cat")], length=128)
    assert short[0].ids == [101, *tokenizer.encode(["a cat"])[0].ids[1:-1], 102, *whole[1][:123], 102]
    assert short[1].ids == [101, *whole[0][:123], 102, *tokenizer.encode(["a cat"])[0].ids[1:-1], 102]


def test_a_tokenizer_that_is_no_wordpiece_is_saved_as_what_it_is(tmp_path: Path) -> None:
    """RoBERTa's: pairs of bytes, and other names for the special pieces, which only special_tokens_map.json tells."""
    from tokenizers import decoders, models, pre_tokenizers, processors

    vocabulary = {name: i for i, name in enumerate(["<s>", "<pad>", "</s>", "<unk>", "a", "b", "\u0120", "\u0120b", "ab", "<mask>"])}
    rust = Rust(models.BPE(vocabulary, [("\u0120", "b"), ("a", "b")], unk_token="<unk>"))
    rust.pre_tokenizer, rust.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    rust.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    rust.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    rust.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    tokenizer = Tokenizer.load(tmp_path)
    assert [tokenizer.special(role) for role in ("cls", "pad", "sep", "unk", "mask")] == [0, 1, 2, 3, 9]
    assert tokenizer.spelled("\u0120b") == ("b", False)
    assert tokenizer.spelled("b") == ("b", True)
    out = tmp_path / "out"
    out.mkdir()
    for name, text in tokenizer.files().items():
        (out / name).write_text(text, encoding="utf-8")
    assert not (out / "vocab.txt").exists()
    (out / "config.json").write_text('{"model_type": "roberta"}')
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    assert theirs("a b")["input_ids"] == tokenizer.encode(["a b"])[0].ids == [0, 4, 7, 2]
    assert theirs.mask_token_id == 9


def test_pieces_as_they_are_written(minilm: Path) -> None:
    tokenizer = Tokenizer.load(minilm)
    assert tokenizer.spelled("##ing") == ("ing", True)
    assert tokenizer.spelled("ing") == ("ing", False)
    assert tokenizer.spelled("#") == ("#", False)


@pytest.mark.parametrize("settings", ['{"mask_token": 5}', '{"mask_token": {"x": 1}}', '{"do_lower_case": "yes"}', "[1]"])
def test_settings_of_another_kind(settings: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "tok", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat"])
    (folder / "tokenizer_config.json").write_text(settings)
    with pytest.raises(UserError, match=r"tokenizer_config\.json"):
        Tokenizer.load(folder)


@pytest.mark.parametrize("named", [None, "BertTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize(
    "settings", [{}, {"do_lower_case": False}, {"do_lower_case": True}, {"strip_accents": True}, {"do_lower_case": False, "strip_accents": True}]
)
@pytest.mark.parametrize("cased", [True, False])
def test_where_two_files_disagree_the_one_counts_that_counts_for_them(
    cased: bool, settings: dict[str, Any], named: str | None, tmp_path: Path, vocabulary: list[str]
) -> None:
    """Casing stands in tokenizer.json and in tokenizer_config.json. transformers asks the second, and takes true where it is silent."""
    tokenizer = Tokenizer.from_vocabulary({piece: i for i, piece in enumerate(vocabulary)}, {"do_lower_case": not cased})
    tokenizer.rust.save(str(tmp_path / "tokenizer.json"))
    settings = settings | ({"tokenizer_class": named} if named else {})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "mask_token": "[MASK]", "unk_token": "[UNK]", "pad_token": "[PAD]"}))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    texts = ["The CAT is naïve", "Ärger 漢字 고양이", "ÉCOLE école ECOLE"]
    ours, out = Tokenizer.load(tmp_path), tmp_path / "out"
    expected = transformers.AutoTokenizer.from_pretrained(tmp_path)(texts)["input_ids"]
    assert [e.ids for e in ours.encode(texts)] == expected
    out.mkdir()
    for name, text in ours.files().items():
        (out / name).write_text(text, encoding="utf-8")
    (out / "config.json").write_text('{"model_type": "bert"}')
    assert transformers.AutoTokenizer.from_pretrained(out)(texts)["input_ids"] == expected
    assert [e.ids for e in Tokenizer.load(out).encode(texts)] == expected


def test_a_tokenizer_is_known_by_what_changes_an_id(minilm: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(minilm)
    again = Tokenizer.load(minilm)
    again.encode(["a"], length=8)
    assert again.fingerprint == tokenizer.fingerprint
    for name, words in tokenizer.files().items():
        (tmp_path / name).write_text(words, encoding="utf-8")
    assert Tokenizer.load(tmp_path).fingerprint == tokenizer.fingerprint
    config = json.loads((tmp_path / "tokenizer_config.json").read_text()) | {"do_lower_case": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.load(tmp_path).fingerprint != tokenizer.fingerprint


# ---- what a folder adds


LETTERS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused1]", *"abcdefghijklmnopqrstuvwxyz<>1"]
LETTERS += [f"##{letter}" for letter in LETTERS[6:]]
COUNT = len(LETTERS)


def piece(name: str, *flags: str, special: bool = False) -> dict[str, Any]:
    return {"content": name, "special": special, **{flag: flag in flags for flag in ("lstrip", "rstrip", "normalized", "single_word")}}


ADDED: dict[str, dict[str, Any]] = {
    "a file of numbers": {"added_tokens.json": {"quux": COUNT + 1, "<e1>": COUNT}},
    "a file of numbers, one of them special": {
        "added_tokens.json": {"<e1>": COUNT, "quux": COUNT + 1},
        "special_tokens_map.json": {"additional_special_tokens": ["<e1>"]},
    },
    "objects in the settings": {
        "tokenizer_config.json": {
            "added_tokens_decoder": {
                "4": piece("[MASK]", "lstrip", special=True),
                str(COUNT): piece("<e1>", "rstrip", special=True),
                str(COUNT + 1): piece("quux", "single_word", "normalized"),
            },
            "additional_special_tokens": ["<e1>"],
        }
    },
    "a list": {"special_tokens_map.json": {"additional_special_tokens": ["<e1>", "quux"]}},
    "two lists, of which the newer counts": {
        "tokenizer_config.json": {"additional_special_tokens": ["<e1>", "quux"]},
        "special_tokens_map.json": {"additional_special_tokens": ["quux"]},
    },
    "the newer name": {"tokenizer_config.json": {"extra_special_tokens": ["<e1>", "quux"]}},
    "roles of its own": {"tokenizer_config.json": {"bos_token": "[unused1]", "unit_token": "a", "additional_special_tokens": ["<e1>", "quux"]}},
    "a file of numbers, one of them special in the settings": {
        "added_tokens.json": {"<e1>": COUNT, "quux": COUNT + 1},
        "tokenizer_config.json": {"additional_special_tokens": ["<e1>"]},
    },
    "a mask that takes the space": {
        "special_tokens_map.json": {"mask_token": piece("[MASK]", "lstrip"), "additional_special_tokens": ["<e1>"]},
        "added_tokens.json": {"<e1>": COUNT, "quux": COUNT + 1},
    },
}


@pytest.mark.parametrize("named", ["BertTokenizer", "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("whole", [False, True], ids=["vocab.txt", "tokenizer.json that lacks them"])
@pytest.mark.parametrize("files", ADDED.values(), ids=ADDED)
def test_what_a_folder_adds_to_its_vocabulary(files: dict[str, Any], whole: bool, named: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "tok", LETTERS)
    if whole:
        Tokenizer.load(folder).rust.save(str(folder / "tokenizer.json"))
    elif named != "BertTokenizer":
        pytest.skip("theirs asks for a tokenizer.json")
    roles = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
    for name, said in ({"tokenizer_config.json": {}} | files).items():
        more = {"tokenizer_class": named, **roles} if name == "tokenizer_config.json" else {}
        (folder / name).write_text(json.dumps(more | said), encoding="utf-8")
    (folder / "config.json").write_text('{"model_type": "bert"}')
    ours, theirs = Tokenizer.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
    draw = random.Random(0)
    texts = ["".join(draw.choices(["quux", "<e1>", "<E1>", "QUUX", " ", "a", "[MASK]", "quuxes", "[unused1]", "x"], k=8)) for _ in range(300)]
    assert first_difference(texts, ours.encode(texts, offsets=True), ask(theirs, texts)) is None
    assert ours.size == COUNT + 2
    out = write(ours.files(), tmp_path / "saved")
    (out / "config.json").write_text('{"model_type": "bert"}')
    assert first_difference(texts, ours.encode(texts, offsets=True), ask(transformers.AutoTokenizer.from_pretrained(out), texts)) is None
    assert [one.ids for one in Tokenizer.load(out).encode(texts)] == [one.ids for one in ours.encode(texts)]


@pytest.mark.parametrize("whole", [False, True], ids=["vocab.txt", "tokenizer.json"])
def test_a_number_that_no_piece_gets(whole: bool, tmp_path: Path) -> None:
    """Theirs goes on with another row of the embedding than the one that was trained."""
    folder = folder_of(tmp_path / "tok", LETTERS)
    if whole:
        Tokenizer.load(folder).rust.save(str(folder / "tokenizer.json"))
    (folder / "added_tokens.json").write_text(json.dumps({"<e1>": COUNT + 7}))
    with pytest.raises(UserError, match=rf"numbers <e1> {COUNT + 7}, its vocabulary makes it {COUNT}"):
        Tokenizer.load(folder)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
@pytest.mark.parametrize("kind", ["BertJapaneseTokenizer", "MPNetTokenizerFast", "FunnelTokenizer", "TapasTokenizer"])
def test_a_class_with_rules_of_its_own_is_refused(kind: str, file: str, tmp_path: Path) -> None:
    """Japanese BERTs of 2019 name theirs in config.json."""
    folder = folder_of(tmp_path / "tok", LETTERS, tokenizer_class=None)
    (folder / file).write_text(json.dumps({"tokenizer_class": kind}))
    with pytest.raises(UserError, match=rf"{file} says {kind.removesuffix('Fast')}, whose rules for vocab.txt are not known here"):
        Tokenizer.load(folder)


@pytest.mark.parametrize("kind", [None, "BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer", "ElectraTokenizerFast", "PreTrainedTokenizerFast"])
def test_a_class_with_berts_rules(kind: str | None, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "tok", LETTERS)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    assert Tokenizer.load(folder).encode(["ab"], offsets=True)[0].tokens == ["[CLS]", "a", "##b", "[SEP]"]


def test_a_template_with_pieces_that_it_does_not_number(minilm: Path, tmp_path: Path) -> None:
    """Rust panics, which Python's `except Exception` does not see."""
    whole = json.loads((minilm / "tokenizer.json").read_text())
    del whole["post_processor"]["special_tokens"]["[SEP]"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises(UserError, match=r"tokenizer\.json cannot be read \([^\n]+\); copy it again from where it came$"):
        Tokenizer.load(tmp_path)
