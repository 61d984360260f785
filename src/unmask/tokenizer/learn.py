"""A WordPiece vocabulary learned from text: the same bytes from the same text, of exactly the size asked for.

The words are cut into letters, the first of a word another symbol than the same letter further on (`a` and `##a`), and the
best pair of neighbours is joined into a new symbol, again and again. Which pair is best is a ranking's to say: the most
frequent one (Sennrich et al. 2016), or the one that stands together most above chance (as Schuster and Nakajima 2012).
"""

from __future__ import annotations

import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unmask.errors import UserError, near
from unmask.tokenizer.merges import ENDS, MASK, RANKINGS, SHIFT, Array, Ranking, Segments
from unmask.tokenizer.report import JAMO, Report, measure
from unmask.tokenizer.wordpiece import SPECIAL, Tokenizer
from unmask.tokenizer.words import PYTHON, Rules, Tally, Words, count, memory_size

HANGUL = ("syllables", "jamo")
COVERAGE = 0.9995
TAKEN_APART = 0.01  # share of the letters from which on the text itself must be in pieces
FILES = ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "report.json")
BATCH = 20_000  # words that are looked at together
PART = 4  # by likelihood the most frequent words come out whole, so many for each such part of the entries: most need pieces on the way
PLACE = 100  # bytes a letter of the words that are learned from takes, its share in the pairs included
SPECIALS = [SPECIAL[role][0] for role in ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")]


@dataclass(frozen=True)
class Learned:
    """A tokenizer, and what it does to texts that it was not learned from."""

    tokenizer: Tokenizer
    report: Report

    def save(self, folder: Path) -> None:
        """The files that unmask and transformers load, and report.json; each written beside and renamed."""
        may_write(folder)
        files = self.tokenizer.files() | {"report.json": json.dumps(self.report.json(), ensure_ascii=False, indent=2) + "\n"}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                beside = folder / f".{name}.{os.getpid()}"
                try:
                    beside.write_text(text, encoding="utf-8", newline="\n")
                    os.replace(beside, folder / name)
                finally:
                    beside.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"{folder} could not be written ({error.strerror or error}); free some space or choose another place") from None


def may_write(folder: Path) -> None:
    """Refuse a folder that holds anything but an earlier tokenizer: a model's pieces would no longer be those its ids stand for."""
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file, not a folder to write a tokenizer to; choose another place")
        names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise UserError(f"{folder} could not be read ({error.strerror or error}); choose another place") from None
    for name in names:
        if name == "config.json" or name.endswith((".safetensors", ".bin")):
            raise UserError(f"{folder} holds a model ({name}), whose ids another vocabulary would give other meanings; choose another folder")
    for name in names:
        if name not in FILES and not name.startswith(tuple(f".{one}." for one in FILES)):  # what a stopped save left is its own too
            raise UserError(f"{folder} holds {name}, which is no file of a tokenizer; choose a new or an empty folder")


def learn(
    texts: Iterable[str],
    size: int = 30_000,
    *,
    cased: bool = False,
    hangul: str = "syllables",
    by: str = "frequency",
    coverage: float = COVERAGE,
    least: int | None = None,
    memory: str | int = "2GB",
    against: Tokenizer | None = None,
    tell: Callable[[int], None] = lambda pieces: None,
) -> Learned:
    """Learn a vocabulary of `size` entries; one text in a hundred is kept to measure it on, beside `against` where that is given.

    `coverage` is the share of all words that the alphabet must spell whole; a word with another letter is unknown. A piece is joined where
    it stands `least` times or more. Without: by frequency 2; by likelihood, which would else join what is rare, as often as word number
    `size / 4` of the most frequent, and where that gives too few pieces half as often, and so on down to 2. With `hangul="jamo"`
    syllables are taken apart and accents stripped, as BERT's uncased models do.
    """
    if by not in RANKINGS:
        raise UserError(f"pieces cannot be chosen by {by!r}{near(by, RANKINGS)}")
    if hangul not in HANGUL:
        raise UserError(f"Hangul cannot be kept in {hangul!r}{near(hangul, HANGUL)}")
    if not 0 < coverage <= 1:
        raise UserError(f"a coverage of {coverage} is no share of the words; give one above 0 and at most 1, such as {COVERAGE}")
    if least is not None and least < 1:
        raise UserError(f"no piece can stand {least} times; give a least of 1 or more")
    room = (memory_size(memory) - PYTHON) * 3 // 5  # the words that were counted take the rest
    words = count(texts, Rules(cased=cased, strip_accents=hangul == "jamo"), memory)
    try:
        alphabet = Alphabet.of(words, coverage, whole=hangul == "syllables")
        if len(SPECIALS) + len(alphabet.pieces) > size:
            needed = len(SPECIALS) + len(alphabet.pieces)
            raise UserError(f"a vocabulary of {size:,} has no room for the special pieces and an alphabet of {needed - 5:,}; ask for {needed:,} or more")
        segments, share = alphabet.segments(words.tally, room)
        if share < 1:
            enough = -(-(PYTHON + alphabet.places * PLACE * 5 // 3) // 10**6) + 1
            warnings.warn(
                f"only {min(share, 0.999):.1%} of the words, the most frequent, fit into {memory} and are learned from; all would with {enough}MB", stacklevel=2
            )
        lengths = [1] * len(alphabet.pieces)
        first, last = (least, least) if least is not None else (2 if by == "frequency" else _often(segments, size // PART), 2)
        ranking = RANKINGS[by](segments.amounts, lengths, first)
        pieces, evidence = _joined(segments, ranking, last, alphabet.pieces, lengths, size - len(SPECIALS), tell)
        settings = {"tokenizer_class": "BertTokenizer", **words.rules.settings}
        tokenizer = Tokenizer.from_vocabulary({piece: number for number, piece in enumerate([*SPECIALS, *pieces])}, settings)
        made = {"by": by, "size": size, "cased": cased, "hangul": hangul, "coverage": coverage, "least": ranking.least, "letters": len(alphabet.letters)}
        made |= {"texts": words.texts, "characters": words.letters, "held_texts": words.held_texts, "words": alphabet.total}
        made |= {"learned_share": round(share, 6), "words_too_long": words.too_long, "words_with_broken_letters": words.broken}
        measured = words.tally if words.held.empty else words.held
        own = measure(tokenizer, measured, evidence)
        return Learned(tokenizer, Report(made, own, measure(against, measured) if against is not None else None))
    finally:
        words.close()


# ---- letters


@dataclass(frozen=True)
class Alphabet:
    """The letters of the vocabulary, each as it begins a word and, where it can, as it continues one."""

    letters: Array  # code points, ascending
    joining: Array  # whether each can continue a word
    occurrences: Mapping[int, int]  # of words, by how often a word stands: how many letters those have in all
    total: int  # words

    @classmethod
    def of(cls, words: Words, coverage: float, *, whole: bool) -> Alphabet:
        """The fewest of the most frequent letters that spell so many of the words; of equals the first in Unicode. If `whole`, no parts of syllables."""
        counts = np.zeros(0x110000, np.int64)
        occurrences: dict[int, int] = {}
        total = 0
        for codes, lengths, times in _batches(words.tally):
            np.add.at(counts, codes, np.repeat(times, lengths))
            for many, letters in zip(times.tolist(), lengths.tolist(), strict=True):
                occurrences[many] = occurrences.get(many, 0) + letters + 1
            total += int(times.sum())
        if whole:
            parts, every = int(counts[list(JAMO)].sum()), int(counts.sum())
            if parts > every * TAKEN_APART:
                raise UserError(f"{parts / every:.0%} of the letters are parts of Hangul syllables; compose the text (Unicode's NFC), or ask for hangul jamo")
            counts[list(JAMO)] = 0  # what is left are marks of other things, and no entry should look like half a syllable
        present = np.flatnonzero(counts)
        ranked = present[np.lexsort((present, -counts[present]))]
        ranks = np.full(len(counts), len(ranked))
        ranks[ranked] = np.arange(len(ranked))
        spelled = np.zeros(len(ranked) + 1, np.int64)  # by the rank of its rarest letter, how often a word stands
        for codes, lengths, times in _batches(words.tally):
            np.add.at(spelled, np.maximum.reduceat(ranks[codes], np.cumsum(lengths) - lengths), times)
        reached = np.cumsum(spelled[:-1])
        letters = np.sort(ranked[: int(np.searchsorted(reached, coverage * int(reached[-1]))) + 1])
        joining = np.array([words.rules.joins(chr(letter)) for letter in letters.tolist()])
        return cls(letters, joining, occurrences, total)

    @property
    def places(self) -> int:
        """What all words take among the segments."""
        return sum(self.occurrences.values())

    @property
    def pieces(self) -> list[str]:
        return [chr(letter) for letter in self.letters.tolist()] + [f"##{chr(letter)}" for letter in self.letters[self.joining].tolist()]

    def segments(self, tally: Tally, room: int) -> tuple[Segments, float]:
        """Every word whose letters are all known, as letters; where not all fit into memory the most frequent, and which share of the text they are."""
        # Those that stand equally often go or stay together: which of them were first in the text must not matter.
        fit, least, letters = min(room // PLACE, 2**31 - 2), 1, 0
        for often in sorted(self.occurrences, reverse=True):
            letters += self.occurrences[often]
            if letters > fit:
                least = often + 1
                break
        first, inside = np.full(0x110000, ENDS, np.int32), np.full(0x110000, ENDS, np.int32)
        first[self.letters] = np.arange(len(self.letters))
        inside[self.letters[self.joining]] = len(self.letters) + np.arange(np.count_nonzero(self.joining))
        symbols: list[Array] = [np.array([ENDS], np.int32)]
        weights: list[Array] = [np.zeros(1, np.int64)]
        seen = 0
        for codes, lengths, times in _batches((word, number) for word, number in tally if number >= least):
            seen += int(times.sum())
            starts = np.cumsum(lengths) - lengths
            found = inside[codes]
            found[starts] = first[codes[starts]]
            known = np.minimum.reduceat(found, starts) != ENDS
            found, lengths, times = found[np.repeat(known, lengths)], lengths[known], times[known]
            row = np.full(len(found) + len(lengths), ENDS, np.int32)
            row[np.arange(len(found)) + np.repeat(np.arange(len(lengths)), lengths)] = found
            symbols.append(row)
            weights.append(np.repeat(times, lengths + 1))
        return Segments(np.concatenate(symbols), np.concatenate(weights), len(self.pieces)), seen / self.total


def _batches(counts: Iterable[tuple[str, int]]) -> Iterable[tuple[Array, Array, Array]]:
    """Many words at once: the code points of all, their lengths, and how often each stands."""
    rest = iter(counts)
    while batch := list(itertools.islice(rest, BATCH)):
        codes = np.frombuffer("".join(word for word, _ in batch).encode("utf-32-le"), "<u4")
        yield codes, np.array([len(word) for word, _ in batch]), np.array([number for _, number in batch], np.int64)


# ---- joining


def _often(segments: Segments, number: int) -> int:
    """How often the word of this number stands, the most frequent being 1; at least 2."""
    times = np.sort(segments.weights[segments.symbols == ENDS])[::-1]  # each word ends so once
    return max(2, int(times[number - 1])) if 0 < number <= len(times) else 2


def _joined(
    segments: Segments, ranking: Ranking, last: int, alphabet: list[str], lengths: list[int], size: int, tell: Callable[[int], None]
) -> tuple[list[str], dict[str, int]]:
    """The alphabet and the pieces joined until there are `size`, and how often each stood when it was made; `lengths` grows with them.

    Where no piece stands the ranking's `least` times any more, that is halved, down to `last`.
    """
    pieces = list(alphabet)
    numbers = {piece: number for number, piece in enumerate(pieces)}
    evidence = dict(zip(pieces, segments.amounts, strict=True))
    ranking.change(*segments.pairs(), range(len(pieces)))
    while len(pieces) < size:
        pair = ranking.best()
        if pair is None and ranking.least > last:
            ranking.least = max(ranking.least // 2, last)
            ranking.change([], [], range(len(pieces)))  # all are ranked anew
            continue
        if pair is None:
            most = len(SPECIALS) + len(pieces)
            often = {1: "once", 2: "twice"}.get(ranking.least, f"{ranking.least:,} times")
            raise UserError(f"the text has only {most:,} pieces, its alphabet and what stands at least {often}; ask for {most:,} or fewer, or give more text")
        left, right = pair >> SHIFT, pair & MASK
        piece = pieces[left] + pieces[right].removeprefix("##")
        new = numbers.setdefault(piece, len(pieces))  # one spelling may be joined in two ways, and is one entry
        if new == len(pieces):
            pieces.append(piece)
            lengths.append(lengths[left] + lengths[right])
        before = segments.amounts[new] if new < len(segments.amounts) else 0
        changed = segments.join(left, right, new)
        evidence[piece] = evidence.get(piece, 0) + segments.amounts[new] - before
        ranking.change(*changed, {left, right, new})
        if len(pieces) % 100 == 0:
            tell(len(pieces))
    return pieces, evidence
