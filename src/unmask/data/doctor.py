"""What is wrong with a data set, told before any hour of a GPU is spent on it: faults, copies, leaks, labels, each with its cost and remedy.

One pass over the texts; what is kept is bounded whatever their size.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unmask.data import corpus, duplicates
from unmask.data.corpus import Row, Source
from unmask.data.sentences import sentences
from unmask.errors import UserError

SCRIPTS = {  # by the blocks most of their letters lie in
    "Latin": ((0x41, 0x24F), (0x1E00, 0x1EFF)),
    "Greek": ((0x370, 0x3FF),),
    "Cyrillic": ((0x400, 0x52F),),
    "Hebrew": ((0x590, 0x5FF),),
    "Arabic": ((0x600, 0x6FF), (0x750, 0x77F)),
    "Devanagari": ((0x900, 0x97F),),
    "Thai": ((0xE00, 0xE7F),),
    "Hangul": ((0xAC00, 0xD7A3), (0x1100, 0x11FF), (0x3130, 0x318F)),
    "Kana": ((0x3040, 0x30FF),),
    "Han": ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF)),
}
STOP = {
    "English": "the of and to in is that was it for with as his on be at by he this are from".split(),
    "French": "le la les des est et dans que qui une pour pas sur du il elle au avec ce".split(),
    "German": "der die das und ist nicht ein eine den von mit zu auf im sich für dem des es".split(),
    "Spanish": "el los las que del una por con para es se su al lo como más pero sus".split(),
    "Italian": "il che di è per una non sono con del della gli le si da nel alla come".split(),
    "Portuguese": "o que não uma os para com do da em um por mais dos como mas foi ao".split(),
    "Dutch": "de het een van en is dat niet op te zijn met voor aan ook maar door naar".split(),
}
BYTES = "unmask-bytes"  # how a byte that is not of its encoding is read
WRONG = ("replaced", "NUL", "control", "surrogate", "bytes")  # kinds of characters that should not be there
MOJIBAKE = re.compile(
    "[ÃÂ][\x80-\xbf]|â\x80[\x80-\xbf]|â€[™œ\x9d“”˜¦\x93\x94]|ï»¿"  # UTF-8 read as Latin-1
    "|(?:[Î-Ù][\x80-\xbf]){2}|(?:[à-í][\x80-\xbf‚-…]{2}){2}"  # other scripts in UTF-8, such as Cyrillic or Hangul
    "|(?:([\xb0-\xc8])(?!\\1)[\xa1-\xfe]){4}"  # Korean in CP949 read as Latin-1; a row of dots (····) is none
)
LINE = 32  # letters; shorter lines ("Yes.") are the same without being copies
HEAD = 2_000  # letters of a document by which its language is told
KEPT = 1_000_000  # lengths, and texts whose label is remembered


@dataclass(frozen=True)
class Finding:
    """Something to know before training."""

    severity: str  # "bad" or "note"
    what: str
    cost: str
    remedy: str


@dataclass(frozen=True)
class Profile:
    """A data set in numbers. Shares are between 0 and 1; `faults` counts documents."""

    documents: int
    characters: int
    words: int
    sentences: int
    lengths: dict[str, int]  # words of a document: quantiles by name
    histogram: dict[int, int]  # words, from each power of two: documents
    scripts: dict[str, float]  # of letters
    languages: dict[str, float]  # of characters, by a rule of thumb
    faults: dict[str, int]
    pairs: float  # share of documents with at least two sentences
    copies: float
    near: float  # copies that are not exact
    lines: float
    sampled: bool  # whether near copies were looked for in a sample


@dataclass(frozen=True)
class Leak:
    """What of the other data set stands in this one."""

    documents: int
    whole: float  # share of its documents that stand here as they are
    runs: float  # share of its documents that share at least one run of 13 words with this
    mostly: float  # share of its documents of which half or more of all such runs stand here


@dataclass(frozen=True)
class Labels:
    """The labels of a table."""

    rows: int
    counts: dict[str, int]
    empty: int  # rows without text
    missing: int  # rows without label
    conflicting: int  # rows whose text stands elsewhere with another label
    example: str
    other: dict[str, int] = field(default_factory=dict)  # of the other data set


@dataclass(frozen=True)
class Report:
    said: tuple[str, ...]
    profile: Profile
    findings: tuple[Finding, ...]
    leak: Leak | None = None
    labels: Labels | None = None

    @property
    def bad(self) -> bool:
        return any(one.severity == "bad" for one in self.findings)

    def json(self) -> dict[str, Any]:
        return asdict(self)


def examine(sources: Sequence[Source], against: Sequence[Source] = (), label: str | None = None, *, tell: Callable[[str], None] = lambda text: None) -> Report:
    """Look at all of it once. With `against`, what leaks between the two; with `label`, a table's labels as well. `tell` is shown each text."""
    from unmask.data import findings

    other = _Other(against) if against else None
    watched = _Labelled(label) if label else None
    profile = _profile(watched.read(sources) if watched else _texts(sources), other, tell)
    leak = other.leak() if other else None
    labels = watched.labels(against) if watched else None
    found = findings.findings(profile, leak, labels)
    return Report(tuple(corpus.said(sources)), profile, found, leak, labels)


def _texts(sources: Sequence[Source]) -> Iterator[str]:
    return corpus.texts(map(_kept, sources), repair=False)


def _kept(source: Source) -> Source:
    """The same, read so that a byte which is not of its encoding becomes a character of its own: to find it is what a doctor is for."""
    return source if ":" in source.encoding else replace(source, encoding=f"{source.encoding}:{BYTES}")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """As Python's surrogateescape, which takes no byte below 128, as those of UTF-16 may be."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "".join(chr(0xDC80 | byte) for byte in error.object[error.start : error.end]), error.end


codecs.register_error(BYTES, _escaped)


# ---- one pass


@cache
def _classes() -> tuple[NDArray[np.uint8], list[str]]:
    """Of every character of the first plane, its script or fault by number; 0 is nothing of either."""
    names = ["", *SCRIPTS, "other", *WRONG]
    table = np.zeros(0x10000, np.uint8)
    for code in range(0x80, 0x10000):
        if chr(code).isalpha():
            table[code] = names.index("other")
    for name, blocks in SCRIPTS.items():
        for first, last in blocks:
            letters = [code for code in range(first, last + 1) if chr(code).isalpha()]
            table[letters] = names.index(name)
    table[0xFFFD] = names.index("replaced")
    table[[*range(1, 9), 11, *range(14, 32), *range(0x7F, 0xA0)]] = names.index("control")
    table[0] = names.index("NUL")
    table[0xD800:0xE000] = names.index("surrogate")
    table[0xDC80:0xDD00] = names.index("bytes")  # as `_kept` has them
    return table, names


def _profile(texts: Iterable[str], other: _Other | None, tell: Callable[[str], None]) -> Profile:
    table, names = _classes()
    classes = np.zeros(len(names), np.int64)
    faults: Counter[str] = Counter()
    histogram: Counter[int] = Counter()
    languages: Counter[str] = Counter()
    copies, lines, near, lengths = duplicates.Copies(), duplicates.Copies(), duplicates.Likeness(), _Lengths()
    documents = letters = words = cut = pairs = 0
    for text in texts:
        tell(text)
        points = duplicates.codes(text)
        here = _counted(table[np.minimum(points, 0xFFFF)], len(names))
        classes += here
        faults.update(name for name in WRONG if here[names.index(name)])
        faults["mojibake"] += not text.isascii() and _misread(text, points)
        hashes = duplicates.words(points)
        spans = len(sentences(text))
        documents, letters, words, cut, pairs = documents + 1, letters + len(text), words + len(hashes), cut + spans, pairs + (spans > 1)
        lengths.add(len(hashes))
        histogram[1 << (len(hashes).bit_length() - 1) if len(hashes) else 0] += 1
        languages[language(text[:HEAD])] += len(text)
        key = duplicates.exact(text.strip())
        copies.add(key)
        near.add(hashes)
        for line in text.split("\n"):
            if len(line) >= LINE:
                lines.add(duplicates.exact(line.strip()))
        if other is not None:
            other.look_up(key, hashes)
    scripts = {name: int(classes[names.index(name)]) for name in [*SCRIPTS, "other"]}
    return Profile(
        documents=documents,
        characters=letters,
        words=words,
        sentences=cut,
        lengths=lengths.quantiles(),
        histogram=dict(sorted(histogram.items())),
        scripts=_shares(scripts),
        languages=_shares(languages),
        faults={name: count for name, count in faults.items() if count},
        pairs=pairs / documents,
        copies=copies.share(),
        near=max(0.0, near.share() - copies.share()),
        lines=lines.share(),
        sampled=near.sampled,
    )


def _misread(text: str, points: NDArray[np.uint32]) -> bool:
    """Most texts hold none of the letters that all of it has, and numpy sees that much sooner."""
    return bool(((points >= 0xB0) & (points <= 0xEF)).any()) and MOJIBAKE.search(text) is not None


def _counted(kinds: NDArray[np.uint8], count: int) -> NDArray[np.int64]:
    """A long text piece by piece: numpy counts in eight bytes a letter."""
    total = np.zeros(count, np.int64)
    for start in range(0, len(kinds), duplicates.BLOCK):
        total += np.bincount(kinds[start : start + duplicates.BLOCK], minlength=count)
    return total


def _shares(counts: dict[str, int]) -> dict[str, float]:
    total = max(1, sum(counts.values()))
    return {name: count / total for name, count in sorted(counts.items(), key=lambda one: (-one[1], one[0])) if count}


def language(text: str) -> str:
    """By rule of thumb: the script, and for Latin letters the commonest words."""
    table, names = _classes()
    counts = dict(zip(names, _counted(table[np.minimum(duplicates.codes(text), 0xFFFF)], len(names)).tolist(), strict=True))
    letters = {name: counts[name] for name in [*SCRIPTS, "other"]}
    total = sum(letters.values())
    if not total:
        return "no letters"
    if letters["Hangul"] > 0.25 * total:
        return "Korean"
    if letters["Kana"] > 0.1 * total:
        return "Japanese"
    if letters["Han"] > 0.25 * total:
        return "Chinese"
    script = max(letters, key=letters.__getitem__)
    if script != "Latin":
        return f"in {script} script" if script != "other" else "in another script"
    words = Counter(text.lower().split())
    scores = {name: sum(words[word] for word in common) for name, common in STOP.items()}
    best = max(scores, key=scores.__getitem__)
    return best if scores[best] > 0.04 * words.total() else "in Latin script, language unknown"


class _Lengths:
    """Every so many lengths, evenly, so that memory is bounded."""

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.step, self.seen = 1, 0
        self.shortest, self.longest = 1 << 62, 0

    def add(self, length: int) -> None:
        self.shortest, self.longest = min(self.shortest, length), max(self.longest, length)
        if self.seen % self.step == 0:
            self.kept.append(length)
            if len(self.kept) > KEPT:
                self.kept, self.step = self.kept[::2], 2 * self.step
        self.seen += 1

    def quantiles(self) -> dict[str, int]:
        if not self.kept:
            return {}
        names = {"5%": 0.05, "25%": 0.25, "median": 0.5, "75%": 0.75, "95%": 0.95, "99%": 0.99}
        between = {name: int(np.quantile(self.kept, share, method="nearest")) for name, share in names.items()}
        return {"shortest": self.shortest, **between, "longest": self.longest}


# ---- a second data set, and labels


class _Other:
    """The data set that this one is compared with: read first, then looked up in this one."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.overlap, self.copies = duplicates.Overlap(), duplicates.Copies()
        self.seen: set[int] = set()
        for text in _texts(sources):
            self.overlap.add(duplicates.words(duplicates.codes(text)))
            self.copies.add(duplicates.exact(text.strip()))
        self.keys = set(self.copies.keys().tolist())

    def look_up(self, key: int, hashes: duplicates.Hashes) -> None:
        if key in self.keys:
            self.seen.add(key)
        self.overlap.look_up(hashes)

    def leak(self) -> Leak:
        shares = self.overlap.shares()
        held = np.frombuffer(self.copies.kept, np.uint64)
        whole = np.isin(held, np.fromiter(self.seen, np.uint64)).mean() if len(held) else 0.0
        return Leak(self.overlap.texts, float(whole), float((shares > 0).mean()), float((shares >= 0.5).mean()))


class _Labelled:
    """Watches rows go by and counts their labels."""

    def __init__(self, column: str) -> None:
        self.column, self.counts = column, Counter[str]()
        self.rows = self.empty = self.missing = 0
        self.example = ""
        self.first: dict[int, str] = {}  # of each text's hash: its label
        self.times: Counter[int] = Counter()  # and its rows
        self.conflicting: set[int] = set()

    def read(self, sources: Sequence[Source]) -> Iterator[str]:
        for source in sources:
            for row in corpus.rows(_kept(source), self.column):
                self._see(row)
                if row.text.strip():
                    yield row.text
        if self.rows == self.empty:
            raise UserError(f"no row of {sources[0].path} holds a text; name the column of the texts with --column")

    def _see(self, row: Row) -> None:
        self.rows += 1
        self.empty += not row.text.strip()
        self.missing += not row.label
        self.counts[row.label] += bool(row.label)
        if not row.text.strip() or not row.label:
            return
        key = duplicates.exact(" ".join(row.text.split()))
        if len(self.first) < KEPT:
            self.first.setdefault(key, row.label)
        if key not in self.first:
            return
        self.times[key] += 1
        if self.first[key] != row.label:
            self.conflicting.add(key)
            self.example = self.example or row.text.strip()[:80]

    def labels(self, against: Sequence[Source]) -> Labels:
        other = Counter(row.label for source in against for row in corpus.rows(_kept(source), self.column) if row.label)
        counts = {name: count for name, count in self.counts.most_common() if count}
        conflicting = sum(self.times[key] for key in self.conflicting)
        return Labels(self.rows, counts, self.empty, self.missing, conflicting, self.example, dict(other.most_common()))
