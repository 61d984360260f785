"""How often each word stands in any amount of text: counted in memory under a cap, in sorted runs on disk beyond it, none forgotten.

Chunks between spaces are counted first, because only the few that differ need the tokenizer's rules. Whatever the order of the
texts and however little the memory, the counts are the same.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import re
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import IO, Any

from tokenizers import decoders, normalizers, pre_tokenizers

from unmask.errors import UserError
from unmask.tokenizer.wordpiece import SURROGATE, Tokenizer

ASKED = 1 << 15  # characters that the tokenizer's rules are asked about at once; they take some hundred bytes for each
BLOCK = 1 << 17  # characters that are split at once; what is larger leaves the processor's cache
CONTROLS = "\x0b\x0c\x1c\x1d\x1e\x1f\x85"  # spaces to Python; BERT takes them out and joins what they part
HELD = 100  # one text in so many is for measuring alone
LEAST = 100_000_000
RUNS = 100  # files that are open at once
LONGEST = 100  # letters; of a longer word BERT knows nothing
SLOT = 140  # bytes of an entry of a dictionary beside its key, while it grows
PYTHON = 70_000_000  # bytes of a program that holds nothing yet
UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def memory_size(said: str | int) -> int:
    """Bytes of "2GB" or "500 MB"; below 100 MB nothing can be learned."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]I?B)\s*", str(said), re.IGNORECASE | re.ASCII)
    if isinstance(said, str) and not found:
        raise UserError(f"a memory of {said!r} cannot be understood; write it as 500MB or 2GB")
    size = int(float(found[1]) * UNITS[found[2].upper()]) if found and isinstance(said, str) else int(said)
    if size < LEAST:
        raise UserError(f"a memory of {said} is too little to count words in; give 100MB or more")
    return size


def is_held(text: str) -> bool:
    """Whether a text is for measuring, never for learning: its own bytes say so, wherever it stands."""
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) % HELD == 0


class Tally:
    """Counts of strings. What outgrows `room` bytes is written to disk as a sorted run, and the runs are merged when asked for."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.counts: Counter[str] = Counter()
        self.runs: list[IO[str]] = []
        self._bytes = 0  # never less than what the counts take

    def add(self, strings: Iterable[str], letters: int) -> None:
        """Count these, which are of so many letters in all."""
        before = len(self.counts)
        self.counts.update(strings)
        self._grown(len(self.counts) - before, letters)

    def add_counts(self, counts: Iterable[tuple[str, int]], letters: int) -> None:
        before = len(self.counts)
        for string, count in counts:
            self.counts[string] += count
        self._grown(len(self.counts) - before, letters)

    def _grown(self, entries: int, letters: int) -> None:
        self._bytes += entries * SLOT + letters * 4
        if self._bytes > self.room:
            self._bytes = len(self.counts) * SLOT + sum(map(sys.getsizeof, self.counts))
            if self._bytes > self.room * 3 // 4:  # else it would be weighed again and again
                self._spill()

    def _spill(self) -> None:
        run = _run((string, self.counts[string]) for string in sorted(self.counts))
        self.counts = Counter()
        self._bytes = 0
        self.runs.append(run)
        if len(self.runs) > RUNS:
            whole = _run(self)
            self.close()
            self.runs = [whole]

    @property
    def empty(self) -> bool:
        return not self.counts and not self.runs

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Each string once, with its count; in no order where nothing was spilled."""
        if not self.runs:
            yield from self.counts.items()
            return
        if self.counts:
            self._spill()
        for string, group in itertools.groupby(heapq.merge(*map(_read, self.runs)), key=itemgetter(0)):
            yield string, sum(count for _, count in group)

    def close(self) -> None:
        for run in self.runs:
            run.close()
        self.runs, self.counts = [], Counter()


def _run(counts: Iterable[tuple[str, int]]) -> IO[str]:
    """A file without a name, so that nothing is left behind, however the program ends."""
    try:
        run = tempfile.TemporaryFile("w+", encoding="utf-8", errors="surrogatepass", newline="\n")  # noqa: SIM115
        try:
            for string, count in counts:
                run.write(f"{string}\t{count}\n")  # no string holds a tab or the end of a line: those are spaces
            run.flush()
        except BaseException:
            with contextlib.suppress(OSError):  # it would be written once more
                run.close()
            raise
    except OSError as error:
        place = f"the temporary folder {tempfile.tempdir}" if tempfile.tempdir else "a temporary folder"  # where none is good, there is none to name
        raise UserError(f"{place} cannot take the words that are counted ({error.strerror or error}); free some space or set TMPDIR to another place") from None
    return run


def _read(run: IO[str]) -> Iterator[tuple[str, int]]:
    run.seek(0)
    for line in run:
        string, _, count = line.rpartition("\t")
        yield string, int(count)


class Rules:
    """BERT's rules for what a word is, as the Rust library has them, asked only about what differs."""

    def __init__(self, *, cased: bool = False, strip_accents: bool = False) -> None:
        self.settings = {"do_lower_case": not cased, "strip_accents": strip_accents, "tokenize_chinese_chars": True}
        self._normalizer = normalizers.BertNormalizer(clean_text=True, lowercase=not cased, strip_accents=strip_accents, handle_chinese_chars=True)
        self._splitter = pre_tokenizers.BertPreTokenizer()
        self._known: set[str] = set()
        self._alone: set[str] = set()
        self._pattern = re.compile(r"[^ ]+")

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Rules:
        """Those that give words as this tokenizer would be asked to add them."""
        lowercases, strips = tokenizer.lowercases, None
        for part in tokenizer._normalizers():
            if isinstance(part, normalizers.BertNormalizer):
                strips = part.strip_accents if part.strip_accents is not None else part.lowercase
        return cls(cased=not lowercases, strip_accents=bool(strips))

    def words(self, text: str) -> list[str]:
        """Cleaned, lowercased if so, and cut at spaces, marks and Chinese characters."""
        clean = self._normalizer.normalize_str(text)
        if new := set(clean) - self._known:
            self._known |= new
            self._alone |= {letter for letter in new if len(self._splitter.pre_tokenize_str(f"a{letter}a")) == 3}
            marks = re.escape("".join(sorted(self._alone)))
            self._pattern = re.compile(f"[{marks}]|[^ {marks}]+" if marks else r"[^ ]+")
        return self._pattern.findall(clean)

    def joins(self, letter: str) -> bool:
        """Whether it can continue a word; marks and Chinese characters stand alone."""
        return self.words(f"a{letter}") == [f"a{letter}"]


class Words:
    """What was counted: words to learn from, chunks to measure on, and how much text there was."""

    def __init__(self, rules: Rules, room: int) -> None:
        self.rules = rules
        self.tally, self.held = Tally(room), Tally(room)
        self.texts = self.letters = self.held_texts = self.too_long = self.broken = 0

    def close(self) -> None:
        self.tally.close()
        self.held.close()


def count(texts: Iterable[str], rules: Rules, memory: str | int = "2GB", *, hold: bool = True) -> Words:
    """Count the words of all texts, but for one text in a hundred, of which only the chunks are counted, to measure on.

    Where that leaves nothing to learn from, as of a single text, all is learned from and nothing held.
    """
    room = (memory_size(memory) - PYTHON) // 4
    found, chunks = Words(rules, room), Tally(room)
    try:
        for block in _blocks(texts, found, hold):
            chunks.add(block.split(), len(block))
        if chunks.empty:
            chunks, found.held, found.held_texts = found.held, chunks, 0
        _split(chunks, found)
    finally:
        chunks.close()
    if found.tally.empty:
        raise UserError("there are no words in the text; give texts with some")
    return found


def _blocks(texts: Iterable[str], found: Words, hold: bool) -> Iterator[str]:
    """Many short texts together, long ones in parts that end at a space; those that are held go aside."""
    kept: list[str] = []
    size = 0
    for text in texts:
        found.texts += 1
        found.letters += len(text)
        if hold and is_held(text):
            found.held_texts += 1
            for part in _parts(text):
                found.held.add(_plain(part).split(), len(part))
        elif len(text) > BLOCK:
            yield from map(_plain, _parts(text))
        else:
            kept.append(text)
            size += len(text)
            if size >= BLOCK:
                yield _plain("\n".join(kept))
                kept, size = [], 0
    if kept:
        yield _plain("\n".join(kept))


def _parts(text: str) -> Iterator[str]:
    if len(text) <= BLOCK:
        yield text
        return
    start, spaces = 0, re.compile(r"[ \t\r\n]")
    while start < len(text):
        space = spaces.search(text, start + BLOCK)
        end = space.end() if space else len(text)
        yield text[start:end]
        start = end


def _plain(text: str) -> str:
    if any(control in text for control in CONTROLS):
        return text.translate(dict.fromkeys(map(ord, CONTROLS)))
    return text


def _split(chunks: Tally, found: Words) -> None:
    """The words of each chunk, those of equal counts together: a call of the tokenizer's rules costs more than what it does."""
    equal: dict[int, list[str]] = {}
    size = 0
    for chunk, number in chunks:
        equal.setdefault(number, []).append(chunk)
        size += len(chunk)
        if size >= BLOCK * 8:
            _count_equal(equal, found)
            equal, size = {}, 0
    _count_equal(equal, found)


def _count_equal(equal: Mapping[int, list[str]], found: Words) -> None:
    for number, chunks in equal.items():
        for text in _joined(chunks):
            if SURROGATE.search(text):
                found.broken += number * sum(bool(SURROGATE.search(chunk)) for chunk in text.split(" "))
                text = SURROGATE.sub("\ufffd", text)
            words = Counter(found.rules.words(text))
            for word in [word for word in words if len(word) > LONGEST]:
                found.too_long += number * words.pop(word)
            found.tally.add_counts(((word, number * times) for word, times in words.items()), len(text))


def _joined(chunks: Iterable[str]) -> Iterator[str]:
    """As much at once as the tokenizer's rules take with little memory. A chunk longer than that, Chinese or noise, is cut where it must be."""
    kept: list[str] = []
    size = 0
    for chunk in chunks:
        for start in range(0, len(chunk), ASKED):
            kept.append(chunk[start : start + ASKED])
            size += len(kept[-1])
            if size >= ASKED:
                yield " ".join(kept)
                kept, size = [], 0
    if kept:
        yield " ".join(kept)


def choose(words: Iterable[tuple[str, int]], tokenizer: Tokenizer, number: int, *, least: int = 2) -> list[str]:
    """The words that would save the most pieces as entries of their own: count * (pieces - 1), the first of equals by spelling.

    A word that is unknown counts as a piece a letter, since nothing of it is read now. What has no letter is no word.
    """
    unknown, special = tokenizer.roles.get("unk_token"), tokenizer.rust.num_special_tokens_to_add(False)
    space = " " * isinstance(tokenizer.rust.decoder, decoders.ByteLevel)  # there it is part of the word's first piece
    best: list[tuple[int, str]] = []
    for batch in _batches(((word, times) for word, times in words if times >= least and any(map(str.isalpha, word))), 10_000):
        for (word, times), found in zip(batch, tokenizer.encode([space + word for word, _ in batch], offsets=True), strict=True):
            pieces = len(word) if unknown in found.tokens else len(found.ids) - special
            if len(set(found.word_ids) - {None}) == 1 and pieces > 1:
                best.append((-times * (pieces - 1), word))
        best = heapq.nsmallest(number, best)
    if len(best) < number:
        remedy = f"ask for {len(best):,} or fewer, or give more text" if best else "give more text"
        raise UserError(f"only {len(best):,} words stand at least {least} times and are not whole yet; {remedy}")
    return [word for _, word in best]


def _batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while batch := list(itertools.islice(rest, size)):
        yield batch
