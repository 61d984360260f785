"""Tokenizers of folders without a tokenizer.json: RoBERTa's byte pairs, and the SentencePiece models of ALBERT and XLM-R.

Ids and offsets are those that transformers makes of the same files.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Rust

from unmask.config import read_json
from unmask.errors import UserError

FAIRSEQ = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
ALBERT = {"cls_token": "[CLS]", "pad_token": "<pad>", "sep_token": "[SEP]", "unk_token": "<unk>", "mask_token": "[MASK]"}
NORMAL, UNKNOWN, CONTROL, DEFINED = 1, 2, 3, 4  # the types of a piece in sentencepiece_model.proto
ALGORITHMS = {1: "Unigram", 2: "BPE", 3: "word", 4: "character"}
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


def read(folder: Path, settings: Mapping[str, Any]) -> Rust | None:
    """The tokenizer of the first of `FILES` that the folder holds; None where it holds none."""
    for name, (build, *classes) in FILES.items():
        if (folder / name).is_file():
            allow(folder, settings, name, classes)
            return build(folder, settings)
    return None


def allow(folder: Path, settings: Mapping[str, Any], name: str, classes: Sequence[str]) -> None:
    """Whether the class that the folder names reads that file by the rules known here; old folders name it in config.json."""
    said, where = settings.get("tokenizer_class"), folder / "tokenizer_config.json"
    if not said and (folder / "config.json").is_file():
        said, where = read_json(folder / "config.json").get("tokenizer_class"), folder / "config.json"
    kind = str(said or "TokenizersBackend").removesuffix("Fast")
    if kind not in (*classes, "PreTrainedTokenizer", "TokenizersBackend"):
        raise UserError(f"{where} says {kind}, whose rules for {name} are not known here; save a tokenizer.json with it")


def content(token: Any, role: str) -> str:
    found = token.get("content") if isinstance(token, dict) else token  # an AddedToken written out as an object
    if not isinstance(found, str):
        raise UserError(f"tokenizer_config.json says {role} is {token!r}, it should be a text; copy it again from where it came")
    return found


# ---- the three kinds


def _byte_pairs(folder: Path, settings: Mapping[str, Any]) -> Rust:
    """RoBERTa's: bytes as letters, joined as merges.txt says. A space belongs to the word, or the mask, behind it."""
    vocabulary, merges = read_json(folder / "vocab.json"), _merges(folder / "merges.txt")
    special = special_of(settings, FAIRSEQ) | special_of(settings, {"mask_token": "<mask>"}, lstrip=True)
    prefix, trim = _flag(settings, "add_prefix_space", False), _flag(settings, "trim_offsets", True)
    try:
        rust = Rust(models.BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False))
    except Exception as error:  # the Rust library raises bare Exception
        raise UserError(f"{folder / 'vocab.json'} does not go with its merges.txt ({error}); copy both again from where they came") from None
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    rust.decoder = decoders.ByteLevel()
    start, end = add(rust, special, folder, settings)
    rust.post_processor = processors.RobertaProcessing(end, start, trim, prefix)
    return rust


def _albert(folder: Path, settings: Mapping[str, Any]) -> Rust:
    pieces = read_pieces(folder / "spiece.model")
    rules: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not _flag(settings, "keep_accents", False):
        rules += [normalizers.NFKD(), normalizers.StripAccents()]
    if _flag(settings, "do_lower_case", True):
        rules.append(normalizers.Lowercase())
    rust = _unigram(pieces.scores, pieces.types.index(UNKNOWN), [*rules, *pieces.rules], settings)
    start, end = add(rust, special_of(settings, ALBERT), folder, settings, pieces.symbols)
    one, two = [f"{start[0]}:0", "$A:0", f"{end[0]}:0"], ["$B:1", f"{end[0]}:1"]
    rust.post_processor = processors.TemplateProcessing(single=one, pair=[*one, *two], special_tokens=[start, end])
    return rust


def _xlm_roberta(folder: Path, settings: Mapping[str, Any]) -> Rust:
    """Ids are fairseq's, which has four special pieces first and the mask last; SentencePiece's own first three are left out."""
    path = folder / "sentencepiece.bpe.model"
    pieces, special = read_pieces(path), special_of(settings, FAIRSEQ)
    if sorted(pieces.types[:3]) != [UNKNOWN, CONTROL, CONTROL]:
        raise UserError(f"{path} does not begin with <unk>, <s> and </s>, as XLM-R's does; save a tokenizer.json with transformers")
    before = [(special[role].content, 0.0) for role in ("cls_token", "pad_token", "sep_token", "unk_token")]
    scores = [*before, *pieces.scores[3:], (special["mask_token"].content, 0.0)]
    rust = _unigram(scores, 3, pieces.rules, settings)
    start, end = add(rust, special, folder, settings, pieces.symbols)
    one, two = [start[0], "$A", end[0]], [end[0], "$B", end[0]]
    rust.post_processor = processors.TemplateProcessing(single=one, pair=[*one, *two], special_tokens=[start, end])
    return rust


FILES: dict[str, tuple[Any, ...]] = {  # each with transformers' classes that read it by these rules
    "vocab.json": (_byte_pairs, "RobertaTokenizer", "LongformerTokenizer", "BartTokenizer"),
    "spiece.model": (_albert, "AlbertTokenizer"),
    "sentencepiece.bpe.model": (_xlm_roberta, "XLMRobertaTokenizer"),
}


def _unigram(scores: Sequence[tuple[str, float]], unknown: int, rules: Sequence[Any], settings: Mapping[str, Any]) -> Rust:
    rust = Rust(models.Unigram(list(scores), unknown, False))
    rust.normalizer = normalizers.Sequence(list(rules)) if rules else None
    scheme = "always" if _flag(settings, "add_prefix_space", True) else "never"
    space = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
    rust.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), space])
    rust.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)
    return rust


# ---- what the folder says of them


def special_of(settings: Mapping[str, Any], usual: Mapping[str, str], **flags: bool) -> dict[str, AddedToken]:
    """Each role's piece. How it meets the spaces around it is the folder's to say, in either of two places."""
    fuller = {content(token, "added_tokens_decoder"): token for token in _numbered(settings).values()}
    said = {role: settings.get(role) or name for role, name in usual.items()}
    return {role: _token(fuller.get(content(token, role), token), role, special=True, **flags) for role, token in said.items()}


def add(
    rust: Rust, special: Mapping[str, AddedToken], folder: Path | None, settings: Mapping[str, Any], symbols: Sequence[AddedToken] = ()
) -> list[tuple[str, int]]:
    """Tell the tokenizer what is taken whole out of any text; what stands first in a text and what last, each with its id."""
    more = _more(folder, settings)
    rust.add_tokens([*symbols, *(token for token, _ in more)])
    _counted(rust, more, folder)
    for role, token in special.items():
        if rust.token_to_id(token.content) is None:
            raise UserError(f"the vocabulary lacks {token.content}, its {role.replace('_', ' ')}: add it, or name another in tokenizer_config.json")
    rust.add_special_tokens([*_named(rust, settings), *special.values()])  # last, because of what is added twice the last counts
    names = special["cls_token"].content, special["sep_token"].content
    return [(name, rust.token_to_id(name) or 0) for name in names]


def complete(rust: Rust, folder: Path, settings: Mapping[str, Any], usual: Mapping[str, str]) -> None:
    """Tell a tokenizer.json what the files beside it list and it lacks. `usual`: its class's own pieces, where it has one that adds them."""
    whole = {token.content for token in rust.get_added_tokens_decoder().values()}
    decided = {token["content"] for token in _numbered(settings).values() if isinstance(token, dict) and "content" in token}
    more = [(token, number) for token, number in _more(folder, settings) if token.content not in whole or token.content in decided]
    new = [(token, number) for token, number in more if rust.token_to_id(token.content) is None]
    rust.add_tokens([token for token, _ in more])
    _counted(rust, new, folder)
    whole |= {token.content for token, _ in more}
    named = [*special_of(settings, usual).values(), *_named(rust, settings)]
    rust.add_special_tokens([token for token in named if token.content not in whole and rust.token_to_id(token.content) is not None])


def _counted(rust: Rust, more: Sequence[tuple[AddedToken, int | None]], folder: Path | None) -> None:
    """A number that a folder gives must be the one its piece has; transformers goes on with another row of the embedding."""
    for token, number in more:
        found = rust.token_to_id(token.content)
        if number not in (None, found):
            raise UserError(f"{folder} numbers {token.content} {number}, its vocabulary makes it {found}; save a tokenizer.json there with transformers")


def _named(rust: Rust, settings: Mapping[str, Any]) -> list[AddedToken]:
    """Pieces of the vocabulary that settings name for some role: bos_token, eos_token, or one of the model's own."""
    said = {role: token for role, token in settings.items() if role.endswith("_token") and isinstance(token, str | dict) and token}
    extra = settings.get("extra_special_tokens")
    said |= extra if isinstance(extra, dict) else {}
    found = [_token(token, role, special=True) for role, token in said.items()]
    return [token for token in found if rust.token_to_id(token.content) is not None]


def _more(folder: Path | None, settings: Mapping[str, Any]) -> list[tuple[AddedToken, int | None]]:
    """What the folder adds to its vocabulary, in the order of the numbers it gives."""
    special = _listed(settings)
    found = [(token, number, isinstance(token, dict) and token.get("special") is True) for number, token in _numbered(settings).items()]
    if "added_tokens_decoder" not in settings and folder is not None and (path := folder / "added_tokens.json").is_file():
        numbers = read_json(path)
        if not all(type(number) is int for number in numbers.values()):
            raise UserError(f"{path} should number its pieces; copy it again from where it came")
        path = folder / "tokenizer_config.json"
        first = _listed(read_json(path)) if path.is_file() else {}  # transformers has not read special_tokens_map.json by then
        found = [(first.get(name, name), number, name in first) for name, number in sorted(numbers.items(), key=lambda item: item[1])]
    named = [(_token(token, "added_tokens_decoder", special=kept), number) for token, number, kept in found]
    known = {token.content for token, _ in named}
    return [*named, *((_token(token, "additional_special_tokens", special=True), None) for name, token in special.items() if name not in known)]


def _listed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Special pieces beyond those of the roles, by their text; newer files have another word for them."""
    found = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    found = list(found.values()) if isinstance(found, dict) and "content" not in found else found
    return {content(token, "additional_special_tokens"): token for token in (found if isinstance(found, list) else [found])}


def _token(said: Any, role: str, *, special: bool, **flags: bool) -> AddedToken:
    told = {flag: said[flag] for flag in FLAGS if isinstance(said, dict) and isinstance(said.get(flag), bool)}
    return AddedToken(content(said, role), special=special, **{"normalized": not special, **flags, **told})


def _numbered(settings: Mapping[str, Any]) -> dict[int, Any]:
    found = settings.get("added_tokens_decoder") or {}
    if not isinstance(found, dict) or not all(number.isdecimal() for number in found):
        raise UserError("tokenizer_config.json should hold an object of numbered pieces under added_tokens_decoder; copy it again from where it came")
    return {int(number): token for number, token in sorted(found.items(), key=lambda item: int(item[0]))}


def _flag(settings: Mapping[str, Any], name: str, usual: bool) -> bool:
    found = settings.get(name, usual)
    if not isinstance(found, bool):
        raise UserError(f"tokenizer_config.json says {name} is {found!r}, it should be true or false; copy it again from where it came")
    return found


def _merges(path: Path) -> list[tuple[str, str]]:
    """Two pieces a line, the first to be joined first."""
    if not path.is_file():
        raise UserError(f"{path} is missing, without which vocab.json says no order of pieces; copy it from where vocab.json came")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}); copy it again from where it came") from None
    pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    for pair in pairs:
        if len(pair) != 2:
            raise UserError(f"{path} should hold two pieces a line, one line is {' '.join(pair)[:60]!r}; copy it again from where it came")
    return [(first, second) for first, second in pairs]


# ---- SentencePiece's files


@dataclass(frozen=True)
class Pieces:
    """What a .model holds of its pieces, in their order, and how it spells a text before it is cut."""

    scores: list[tuple[str, float]]
    types: list[int]
    charsmap: bytes

    @property
    def rules(self) -> list[Any]:
        return [normalizers.Precompiled(self.charsmap)] if self.charsmap else []

    @property
    def symbols(self) -> list[AddedToken]:
        """What its trainer was told to keep whole."""
        kept = [(piece, kind) for (piece, _), kind in zip(self.scores, self.types, strict=True) if kind in (CONTROL, DEFINED)]
        return [AddedToken(piece, normalized=False, special=kind == CONTROL) for piece, kind in kept]


def read_pieces(path: Path) -> Pieces:
    """A Unigram model out of SentencePiece's file (sentencepiece_model.proto), or one sentence: Rust panics where a file is not whole."""
    try:
        parts = list(_fields(path.read_bytes()))
        (trainer,), (rules,) = ([dict(_fields(part)) for number, part in parts if number == wanted] for wanted in (2, 3))
        pieces = [dict(_fields(part)) for number, part in parts if number == 1]
        texts = [piece[1].decode() for piece in pieces]
        scores = [struct.unpack("<f", piece.get(2, bytes(4)))[0] for piece in pieces]
        types, charsmap = [int(piece.get(3, NORMAL)) for piece in pieces], rules.get(2, b"")
        sound = all(texts) and len(set(texts)) == len(texts) and all(map(math.isfinite, scores)) and types.count(UNKNOWN) == 1 and _sound(charsmap)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); copy it again from where it came") from None
    except (ValueError, TypeError, AttributeError, LookupError, struct.error):
        sound = False
    if not sound:
        raise UserError(f"{path} is cut short or damaged; copy it again from where it came")
    if trainer.get(3, 1) != 1:
        kind = ALGORITHMS.get(trainer[3], "unknown")
        raise UserError(f"{path} is SentencePiece's, but a {kind} model, and only Unigram ones are read here; save a tokenizer.json with transformers")
    return Pieces(list(zip(texts, scores, strict=True)), types, charsmap)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protobuf message, each with its number: whole numbers, or bytes (protobuf.dev, "Encoding")."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, place = _varint(message, place)
            yield number, value
        else:
            size, place = _varint(message, place) if kind == 2 else ({1: 8, 5: 4}[kind], place)
            if place + size > len(message):
                raise ValueError
            yield number, message[place : place + size]
            place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Seven bits a byte, the lowest first, the eighth set while there are more; and the place behind it."""
    number = shift = 0
    while True:
        number |= (message[place] & 127) << shift
        if message[place] < 128:
            return number, place + 1
        place, shift = place + 1, shift + 7
        if shift > 63:
            raise ValueError


def _sound(charsmap: bytes) -> bool:
    """Whether every step in its double array (Aoe 1989) ends in the array, and every answer at the start of a letter."""
    if not charsmap:
        return True
    size = struct.unpack_from("<I", charsmap)[0]
    units = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
    texts = np.frombuffer(charsmap, np.uint8, offset=4 + size)
    charsmap[4 + size :].decode()
    places = np.arange(len(units)) ^ ((units >> 10) << ((units & 512) >> 6))
    steps = (units < 2**31).nonzero()[0]
    if size % 4 or not len(units) or (places[steps] | 255).max(initial=0) >= len(units):
        return False
    answers = units[places[steps[units[steps] >> 8 & 1 == 1]]] & (2**31 - 1)
    return bool((answers < len(texts)).all()) and not (texts[answers] & 192 == 128).any()
