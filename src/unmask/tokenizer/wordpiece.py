"""A folder's tokenizer, over the Rust library `tokenizers`: casing, windows, the special pieces, in and out of files.

Truncation and padding that a `tokenizer.json` carries are taken off: how long a text may be is the folder's `length`
(task.json), and nothing is padded here.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Encoding as Encoding
from tokenizers import Tokenizer as Rust

from unmask.config import read_json
from unmask.errors import UserError
from unmask.tokenizer import foreign
from unmask.tokenizer.foreign import content

Text = str | tuple[str, str]

SPECIAL = {  # each role, and the names it has: BERT's first
    "unk_token": ("[UNK]", "<unk>"),
    "sep_token": ("[SEP]", "</s>"),
    "pad_token": ("[PAD]", "<pad>"),
    "cls_token": ("[CLS]", "<s>"),
    "mask_token": ("[MASK]", "<mask>"),
}
BERT = {role: names[0] for role, names in SPECIAL.items()}
CLASSES = [  # transformers' that read a vocab.txt by BERT's rules; each had a fast one of the same name
    f"{name}Tokenizer"
    for name in (
        *("Bert", "DistilBert", "Electra", "MobileBert", "ConvBert", "MegatronBert", "SqueezeBert", "RetriBert", "VisualBert", "Ernie", "Nezha"),
        *("LayoutLM", "Lxmert", "Realm", "DPRContextEncoder", "DPRQuestionEncoder", "DPRReader"),
    )
]
AS_THEY_ARE = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes that take a tokenizer.json as it is
LONGER = 200  # pieces; what a cut changes lies nearer to it
SURROGATE = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """Texts or pairs to `Encoding`s (ids, type_ids, offsets in characters, word_ids), as the folder prescribes."""

    def __init__(self, rust: Rust, settings: Mapping[str, Any]) -> None:
        rust.no_truncation()
        rust.no_padding()
        self.rust = rust
        self.settings = dict(settings)
        named = {role: content(settings[role], role) for role in SPECIAL if settings.get(role)}
        here = {role: next((name for name in usual if rust.token_to_id(name) is not None), None) for role, usual in SPECIAL.items()}
        self.roles = {role: name for role in SPECIAL if (name := named.get(role) or here[role])}
        self._lock = threading.Lock()  # truncation is a state of the Rust object

    # ---- files

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """From `tokenizer.json`, else `vocab.txt`, the casing rules those of `tokenizer_config.json` for either; else as `foreign` reads it."""
        settings = _settings(folder)
        if (folder / "tokenizer.json").is_file():
            rust = _read(folder / "tokenizer.json")
            rebuilt = isinstance(rust.normalizer, normalizers.BertNormalizer) and settings.get("tokenizer_class") not in AS_THEY_ARE
            if rebuilt:
                rust.normalizer = _normalizer(settings)
            foreign.complete(rust, folder, settings, BERT if rebuilt else {role: "" for role in SPECIAL if settings.get(role)})
            return cls(rust, settings)
        if (folder / "vocab.txt").is_file():
            foreign.allow(folder, settings, "vocab.txt", CLASSES)
            return cls.from_vocabulary(read_vocabulary(folder / "vocab.txt"), settings, folder)
        if (found := foreign.read(folder, settings)) is not None:
            return cls(found, settings)
        others = "vocab.json and merges.txt, spiece.model, sentencepiece.bpe.model"
        raise UserError(f"{folder} holds no tokenizer: put tokenizer.json or vocab.txt (or {others}) beside config.json")

    @classmethod
    def from_vocabulary(cls, pieces: Mapping[str, int], settings: Mapping[str, Any] | None = None, folder: Path | None = None) -> Tokenizer:
        """BERT's own rules over a vocabulary, and what the folder adds to it: clean, split at Chinese characters and punctuation, lowercase if told to."""
        settings = dict(settings or {})
        special = foreign.special_of(settings, BERT)
        rust = Rust(models.WordPiece(dict(pieces), unk_token=special["unk_token"].content))
        rust.normalizer = _normalizer(settings)
        rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        rust.decoder = decoders.WordPiece(prefix="##")
        start, end = foreign.add(rust, special, folder, settings)
        rust.post_processor = processors.TemplateProcessing(
            single=f"{start[0]}:0 $A:0 {end[0]}:0", pair=f"{start[0]}:0 $A:0 {end[0]}:0 $B:1 {end[0]}:1", special_tokens=[start, end]
        )
        return cls(rust, settings)

    def files(self, length: int | None = None, *, segments: bool = True) -> dict[str, str]:
        """Every file another library wants of this tokenizer, by name. `segments`: whether the model takes them."""
        pieces = {number: piece for piece, number in self.rust.get_vocab(with_added_tokens=False).items()}
        ours = isinstance(self.rust.model, models.WordPiece)
        settings = {"tokenizer_class": "BertTokenizer", **self.settings, **self.roles}
        if not ours and settings["tokenizer_class"] not in AS_THEY_ARE:
            settings["tokenizer_class"] = AS_THEY_ARE[0]  # any other class would build the tokenizer anew, by its own rules
        settings.pop("added_tokens_decoder", None)  # tokenizer.json has them all, and where this stands too, this counts
        for part in self._normalizers():
            if isinstance(part, normalizers.BertNormalizer):  # said aloud: what is left out there means true
                settings |= {"do_lower_case": part.lowercase, "strip_accents": part.strip_accents, "tokenize_chinese_chars": part.handle_chinese_chars}
        if length is not None:
            settings["model_max_length"] = length
        if not segments:
            settings["model_input_names"] = ["input_ids", "attention_mask"]
        with self._lock:
            self.rust.no_truncation()  # else the last encode's would stand in the file
            whole = self.rust.to_str(pretty=True)
        files = {
            "tokenizer.json": whole,
            "tokenizer_config.json": json.dumps(settings, ensure_ascii=False, indent=2) + "\n",
            "special_tokens_map.json": json.dumps(self.roles, ensure_ascii=False, indent=2) + "\n",
        }
        if ours:
            # A number that no piece has (a line named twice) keeps its line, or every later piece would move.
            files["vocab.txt"] = "".join(pieces.get(number, f"[none {number}]") + "\n" for number in range(max(pieces) + 1))
        return files

    # ---- what it holds

    @property
    def size(self) -> int:
        """How many rows an embedding needs: the largest id and one."""
        return max(self.rust.get_vocab().values()) + 1

    @property
    def fingerprint(self) -> str:
        """The hash by which it is known: of all that changes an id."""
        whole = json.loads(self.rust.to_str())
        return hashlib.sha256(json.dumps({**whole, "truncation": None, "padding": None}, sort_keys=True).encode()).hexdigest()

    @property
    def segments(self) -> int:
        """How many segments its template tells apart."""
        state = b"" if self.rust.post_processor is None else self.rust.post_processor.__getstate__()
        return max(map(int, re.findall(rb'"type_id":\s*(\d+)', state)), default=0) + 1

    @property
    def lowercases(self) -> bool:
        return any(isinstance(part, normalizers.Lowercase) or getattr(part, "lowercase", False) for part in self._normalizers())

    def _normalizers(self) -> list[Any]:
        found = self.rust.normalizer
        return [*found] if isinstance(found, normalizers.Sequence) else [found] if found is not None else []  # type: ignore[misc]

    def lowercase(self) -> None:
        """As sentence-transformers' do_lower_case: before the tokenizer's own rules, unless they do it; special pieces stay as typed."""
        if not self.lowercases:
            self.rust.normalizer = normalizers.Sequence([normalizers.Lowercase(), *self._normalizers()])

    def special(self, role: str) -> int:
        """The id of `mask`, `pad`, `cls`, `sep` or `unk`."""
        token = self.roles.get(f"{role}_token")
        number = None if token is None else self.rust.token_to_id(token)
        if number is None:
            raise UserError(f"the tokenizer has no {role} piece{f' ({token})' if token else ''}; name it in tokenizer_config.json as {role}_token")
        return number

    def piece(self, number: int) -> str:
        return self.rust.id_to_token(number) or f"[{number}]"

    def spelled(self, piece: str) -> tuple[str, bool]:
        """A piece as it is written in a text, and whether it continues the word before it."""
        if isinstance(self.rust.model, models.WordPiece):
            mark = self.rust.model.continuing_subword_prefix
            return piece.removeprefix(mark), piece.startswith(mark) and piece != mark
        written = self.rust.decoder.decode(["a", piece])[1:] if self.rust.decoder is not None else piece
        return written.lstrip(), not written.startswith(" ")

    def decode(self, ids: Sequence[int]) -> str:
        return self.rust.decode(list(ids), skip_special_tokens=False)

    # ---- new words

    def add(self, words: Sequence[str]) -> dict[str, list[int]]:
        """Make entries of these words: all, or none where one cannot be. Of each that was new, the ids of the known pieces it was made of.

        In a vocabulary of WordPiece or Unigram it is found at the start of longer words too, as Korean ones with their particles are.
        Byte pairs cannot be told of a word, so there it is taken whole out of the text where it stands alone.
        """
        with self._lock:
            self.rust.no_truncation()
            inside = isinstance(self.rust.model, models.WordPiece | models.Unigram) and self.size == _numbers(self.rust)
            found: dict[str, tuple[str, list[int]]] = {}
            for word in [words] if isinstance(words, str) else words:
                entry, ids = self._entry(word, inside)
                if ids is not None:
                    found.setdefault(entry, (word, ids))
            if found and inside:
                self.rust.model = _grown(self.rust.model, {entry: ids for entry, (_, ids) in found.items()}, self.size)
            elif found:
                if self.rust.get_vocab_size() != self.size:
                    raise UserError("some numbers of the tokenizer belong to no piece, and new words would take them; save it anew without such gaps")
                self.rust.add_tokens([AddedToken(entry, single_word=True, normalized=True, lstrip=self._bytes) for entry in found])
            unknown = self.rust.token_to_id(self.roles.get("unk_token", ""))
            return {word: [number for number in ids if number != unknown] for word, ids in found.values()}

    @property
    def _bytes(self) -> bool:
        """Whether a space is part of the piece behind it."""
        return isinstance(self.rust.decoder, decoders.ByteLevel)

    def _entry(self, word: str, inside: bool) -> tuple[str, list[int] | None]:
        """A word as the vocabulary has it, and the pieces it is made of; None where it is there."""
        if SURROGATE.search(word):
            raise UserError(f"the word {word!r} holds half of a character cut in two; repair the list it came from")
        normal = self.rust.normalizer.normalize_str(word) if self.rust.normalizer is not None else word
        if not normal.strip():
            raise UserError(f"nothing is left of the word {word!r} once the tokenizer has cleaned it; leave it out")
        if self.rust.token_to_id(word) is not None:
            return word, None
        found = self.rust.encode(f" {word}" if self._bytes else word, add_special_tokens=False)
        if len(set(found.word_ids)) != 1 or word != word.strip():
            raise UserError(f"the tokenizer cuts {word!r} at its spaces or marks before it looks anything up; give words without them")
        longest = getattr(self.rust.model, "max_input_chars_per_word", len(normal))
        if len(normal) > longest:
            raise UserError(f"the word {word[:20]!r}... has {len(normal)} letters, and the tokenizer knows none of more than {longest}; leave it out")
        entry = self.rust.pre_tokenizer.pre_tokenize_str(normal)[0][0] if inside and self.rust.pre_tokenizer is not None else normal.strip()
        whole = len(found.ids) == 1 and found.tokens[0] != self.roles.get("unk_token")
        return entry, None if whole or self.rust.token_to_id(entry) is not None else found.ids

    # ---- encoding

    def encode(
        self,
        texts: Sequence[Text],
        *,
        length: int | None = None,
        stride: int = 0,
        cut: str = "longest_first",
        offsets: bool = False,
    ) -> list[Encoding]:
        """Encode texts or pairs, [CLS] and [SEP] included, in their order.

        A longer one is cut to `length` pieces; the rest is in `.overflowing`, in windows that overlap by `stride`.
        `cut` says which of a pair gives way. Offsets are counted in characters; without them it is faster.
        """
        clean = [_clean(text) for text in texts]
        _tell(clean, texts)
        with self._lock:
            if length is None:
                self.rust.no_truncation()
            else:
                self._room(length, stride, cut, any(not isinstance(text, str) for text in clean))
                if cut == "longest_first" and not stride:
                    clean = [text if isinstance(text, str) else self._heads(*text, length) for text in clean]
                self.rust.enable_truncation(length, stride=stride, strategy=cut)
            run = self.rust.encode_batch if offsets else self.rust.encode_batch_fast
            try:
                return run(clean)
            except BaseException as error:
                said = _fault(error)
                if length is not None and "runcat" in said:  # where one text of a pair alone is too long
                    raise UserError(f"a length of {length} pieces leaves no room for the text that is to be cut ({said}); ask for more") from None
                raise UserError(f"the tokenizer fails at a text ({said}), its files are not whole; copy them again from where they came") from None

    def _heads(self, first: str, second: str, length: int) -> tuple[str, str]:
        """As much of two long texts as `length` pieces need: Rust would keep every window of one with every window of the other.

        The longer one stays the longer, because the odd piece is its.
        """
        if len(first) <= length + LONGER and len(second) <= length + LONGER:
            return first, second
        self.rust.no_truncation()
        one, two = self.rust.encode_batch([first, second], add_special_tokens=False)
        longer = len(one) > len(two)
        return _head(first, one, length + LONGER * longer), _head(second, two, length + LONGER * (not longer))

    def _room(self, length: int, stride: int, cut: str, pairs: bool) -> None:
        special, parts = self.rust.num_special_tokens_to_add(pairs), 2 if pairs and cut == "longest_first" else 1
        if length < special + parts:
            raise UserError(f"a length of {length} pieces leaves no room beside the special ones; ask for {special + parts} or more")
        if stride >= (length - special) // parts:  # Rust panics
            raise UserError(f"windows of {length} pieces cannot overlap by {stride}; ask for longer ones, or a smaller overlap")


def _settings(folder: Path) -> dict[str, Any]:
    """What two files say of a tokenizer. The older one counts first, as in transformers, where the newer does not list all that was added."""
    newer, older = (read_json(path) if path.is_file() else {} for path in (folder / "tokenizer_config.json", folder / "special_tokens_map.json"))
    listed = {"additional_special_tokens"} if {"additional_special_tokens", "extra_special_tokens"} & set(newer) else set()
    older = {role: token for role, token in older.items() if token is not None and role not in listed}
    return older | newer if "added_tokens_decoder" in newer else newer | older


def _read(path: Path) -> Rust:
    try:
        rust = Rust.from_file(str(path))
        rust.no_truncation()
        rust.encode_batch(["", ("", "")])  # a template may ask for pieces that it does not number
        return rust
    except BaseException as error:
        raise UserError(f"{path} cannot be read ({_fault(error)}); copy it again from where it came") from None


def _fault(error: BaseException) -> str:
    """What the Rust library says. It raises bare Exception, and where it had not thought of something, a PanicException, which is none."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error
    return str(error).strip().split("\n")[0]


def read_vocabulary(path: Path) -> dict[str, int]:
    """`vocab.txt`: a piece a line, its id the number of the line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    if lines and lines[-1] == "":
        lines.pop()
    return {piece: number for number, piece in enumerate(lines)}  # of a piece named twice the later line counts, as everywhere


def _numbers(rust: Rust) -> int:
    """How many rows the model alone would need, without what was added to it."""
    return max(rust.get_vocab(with_added_tokens=False).values()) + 1


def _grown(model: Any, entries: Mapping[str, list[int]], first: int) -> Any:
    """The same model, and these entries with the numbers from `first` on. Rust's own cannot be edited."""
    state = json.loads(model.__getstate__())
    if isinstance(model, models.WordPiece):
        pieces = state["vocab"] | {entry: first + i for i, entry in enumerate(entries)}
        rules = {rule: state[rule] for rule in ("unk_token", "max_input_chars_per_word", "continuing_subword_prefix")}
        return models.WordPiece(pieces, **rules)
    scores = [score for _, score in state["vocab"]]
    least, unknown = min(scores), state["unk_id"]
    # Just above the best way to make it of pieces; never below all others, since what is unknown is scored by the least of them.
    worth = [max(sum(least - 10 if i == unknown else scores[i] for i in ids) + 1e-3, least) for ids in entries.values()]
    return models.Unigram([*map(tuple, state["vocab"]), *zip(entries, worth, strict=True)], unknown, state["byte_fallback"])


def _head(text: str, encoding: Encoding, pieces: int) -> str:
    """The text up to the end of that piece, or of the letter that it is a part of: as no pieces were joined there, none before it changes."""
    offsets = encoding.offsets
    if len(offsets) <= pieces:
        return text
    last = pieces - 1
    while last + 1 < len(offsets) and offsets[last + 1][0] < offsets[last][1]:
        last += 1
    return text[: offsets[last][1]]


def _clean(text: Text) -> Text:
    """Rust strings hold no lone surrogates. One character for one, so that offsets stay true."""
    if isinstance(text, str):
        return SURROGATE.sub("\ufffd", text)
    first, second = text
    return SURROGATE.sub("\ufffd", first), SURROGATE.sub("\ufffd", second)


def _tell(clean: Sequence[Text], texts: Sequence[Text]) -> None:
    broken = [i for i, (after, before) in enumerate(zip(clean, texts, strict=True)) if after != before]
    if broken:
        warnings.warn(
            f"{len(broken)} of {len(texts)} texts hold lone surrogates (the first is number {broken[0]}), half of a character cut in two; "
            "read as U+FFFD: repair the file they came from",
            stacklevel=3,
        )


def _normalizer(settings: Mapping[str, Any]) -> Any:
    """BERT's cleaning by the three rules of tokenizer_config.json; tokenizer.json may say otherwise, and transformers does not ask it."""
    rules: dict[str, Any] = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
    for rule, usual in rules.items():
        value = settings.get(rule, usual)
        if not isinstance(value, bool) and (value is not None or usual is not None):
            raise UserError(f"tokenizer_config.json says {rule} is {value!r}, it should be true or false; copy it again from where it came")
        rules[rule] = value
    lowercase, strip, chinese = rules.values()
    return normalizers.BertNormalizer(clean_text=True, lowercase=lowercase, strip_accents=strip, handle_chinese_chars=chinese)
