"""What a vocabulary does to text: how much stays unknown, into how many pieces words fall, and which entries look odd."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.errors import UserError
from unmask.tokenizer.wordpiece import SURROGATE, Tokenizer, read_vocabulary

if TYPE_CHECKING:
    from rich.table import Table

JAMO = (*range(0x1100, 0x1200), *range(0xA960, 0xA980), *range(0xD7B0, 0xD800))  # parts of syllables; the letters people type alone, as ㅋ, are others
JAMO_LETTERS = frozenset(map(chr, JAMO))
LISTED = 20
NAMES = {"CJK": "Han", "IDEOGRAPHIC": "Han"}


@dataclass
class Tallied:
    """Words of one script, or of all."""

    words: int = 0
    pieces: int = 0
    unknown: int = 0
    whole: int = 0

    def add(self, times: int, pieces: int, unknown: int) -> None:
        self.words += times
        self.pieces += times * pieces
        self.unknown += times * unknown
        self.whole += times * (pieces == 1 and not unknown)

    def rates(self) -> Rates:
        words, pieces = max(self.words, 1), max(self.pieces, 1)
        return Rates(self.words, round(self.unknown / pieces, 6), round(self.pieces / words, 4), round(self.whole / words, 4))


@dataclass(frozen=True)
class Rates:
    words: int
    unknown: float  # share of the pieces
    pieces_per_word: float
    whole: float  # share of the words that are one entry


@dataclass(frozen=True)
class Measures:
    entries: int
    all: Rates
    scripts: Mapping[str, Rates]
    unused: int  # entries that the text never needs
    jamo: int  # entries that hold a part of a Hangul syllable
    longest: tuple[str, ...]
    rarest: tuple[tuple[str, int], ...]  # and how often each stood


@dataclass(frozen=True)
class Report:
    """How a vocabulary was made, what it does, and what another does to the same text."""

    made: Mapping[str, Any]
    own: Measures
    other: Measures | None = None
    note: str = field(init=False)

    def __post_init__(self) -> None:
        held = self.made.get("held_texts", 0)
        where = f"on {held:,} texts that were not learned from" if held else "on the text that was learned from, as no text could be held back"
        object.__setattr__(self, "note", f"measured {where}")

    def json(self) -> dict[str, Any]:
        return asdict(self)

    def show(self) -> None:
        """For people."""
        from rich.console import Console

        Console().print(self.table())

    def table(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        sides = [self.own] if self.other is None else [self.own, self.other]
        table = Table("", *["learned", "the other"][: len(sides)], title=self.note)

        def row(name: str, *cells: str) -> None:
            table.add_row(name, *map(Text, cells))

        share = self.made.get("learned_share", 1)
        if share < 1:
            row("learned from", f"{min(share, 0.999):.1%} of the words")
        row("entries", *(f"{side.entries:,}" for side in sides))
        row("unknown", *(f"{side.all.unknown:.3%}" for side in sides))
        row("pieces a word", *(f"{side.all.pieces_per_word:.3f}" for side in sides))
        row("words kept whole", *(f"{side.all.whole:.1%}" for side in sides))
        for script in self.own.scripts:
            found = [side.scripts.get(script) for side in sides]
            row(script, *(f"{one.pieces_per_word:.3f} pieces, {one.unknown:.3%} unknown, {one.words:,} words" if one else "" for one in found))
        row("entries never used here", *(f"{side.unused:,}" for side in sides))
        row("entries with parts of syllables", *(f"{side.jamo:,}" for side in sides))
        row("longest", *("  ".join(side.longest[:8]) for side in sides))
        row("rarest", *("  ".join(f"{piece} {number}" for piece, number in side.rarest[:8]) for side in sides))
        return table


def measure(tokenizer: Tokenizer, chunks: Iterable[tuple[str, int]], evidence: Mapping[str, int] | None = None) -> Measures:
    """What the tokenizer makes of these strings without spaces, each standing so often; a word is what its own rules cut out.

    The rarest entries are those with the least `evidence`, how often each stood when it was learned; else those the strings use least.
    """
    unknown = tokenizer.roles.get("unk_token")
    whole, scripts, used = Tallied(), dict[str, Tallied](), dict[str, int]()
    rest = iter(chunks)
    while batch := list(islice(rest, 2_000)):
        texts = [SURROGATE.sub("\ufffd", chunk) for chunk, _ in batch]
        for text, (_, times), found in zip(texts, batch, tokenizer.encode(texts, offsets=True), strict=True):
            words: dict[int, list[int]] = {}
            for number, piece, (start, _) in zip(found.word_ids, found.tokens, found.offsets, strict=True):
                if number is not None:
                    used[piece] = used.get(piece, 0) + times
                    word = words.setdefault(number, [start, 0, 0])
                    word[1] += 1
                    word[2] += piece == unknown
            for start, pieces, unknowns in words.values():
                whole.add(times, pieces, unknowns)
                scripts.setdefault(script(text[start]), Tallied()).add(times, pieces, unknowns)
    special = set(tokenizer.roles.values())
    entries = sorted(set(tokenizer.rust.get_vocab()) - special)
    seen = used if evidence is None else evidence
    joined = [piece for piece in entries if len(piece.removeprefix("##")) > 1]  # letters are there for the alphabet's sake
    rarest = sorted(joined, key=lambda piece: (seen.get(piece, 0), -len(piece), piece))[:LISTED]
    return Measures(
        entries=tokenizer.size,
        all=whole.rates(),
        scripts={name: scripts[name].rates() for name in sorted(scripts, key=lambda name: (-scripts[name].words, name))},
        unused=sum(piece not in used for piece in entries),
        jamo=sum(not JAMO_LETTERS.isdisjoint(piece) for piece in entries),
        longest=tuple(sorted(entries, key=lambda piece: (-len(piece.removeprefix("##")), piece))[:LISTED]),
        rarest=tuple((piece, seen.get(piece, 0)) for piece in rarest),
    )


@lru_cache(maxsize=100_000)
def script(letter: str) -> str:
    """Latin, Hangul, Han and so on, as the letter's name in Unicode begins; else numbers or marks."""
    if letter.isdigit():
        return "numbers"
    if not letter.isalpha():
        return "marks"
    first = unicodedata.name(letter, "other").split()[0].split("-")[0]
    return NAMES.get(first, first.capitalize())


def load(place: Path) -> Tokenizer:
    """A tokenizer to compare with: its folder, or a bare vocab.txt, whose entries then say whether it lowercases and strips accents."""
    if place.is_dir():
        return Tokenizer.load(place)
    if not place.is_file():
        raise UserError(f"there is no vocabulary {place}; give a vocab.txt or the folder of a tokenizer")
    if place.name == "vocab.txt" and (place.parent / "tokenizer_config.json").is_file():
        return Tokenizer.load(place.parent)
    pieces = read_vocabulary(place)
    cased = any(piece != piece.lower() for piece in pieces if not piece.startswith("["))
    accents = any("가" <= letter <= "힣" or unicodedata.normalize("NFD", letter) != letter for piece in pieces for letter in piece)
    return Tokenizer.from_vocabulary(pieces, {"do_lower_case": not cased, "strip_accents": False if accents else None})
