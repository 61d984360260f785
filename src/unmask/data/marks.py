"""Marked texts: spans with a name, to and from a tag a word (IOB1, IOB2, IOBES, BILOU, BMES), and as objects with offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from unmask.errors import UserError

Style = Literal["before", "after", "bare"]  # B-PER; PER-B or PER_B, as Korean sets have it; PER
LETTERS = "BIESLUM"
STARTS = ("start", "start_offset", "begin", "from")
ENDS = ("end", "end_offset", "to")
NAMES = ("label", "type", "tag", "entity", "entity_group")


@dataclass(frozen=True, order=True)
class Mark:
    """text[start:end] is a `label`."""

    label: str
    start: int
    end: int


# ---- a tag a word


def style(tags: Iterable[str]) -> Style:
    """Where the letters stand that say how a mark begins and goes on. What looks like one is one only where the set has them: E-mail is a name."""
    found = set(tags)
    if not found - {"O"}:
        return "before"
    if any(tag.startswith(("B-", "I-")) for tag in found):
        return "before"
    if any(tag[-2:] in ("-B", "_B") and f"{tag[:-1]}I" in found for tag in found):
        return "after"
    return "bare"


def split(tag: str, how: Style) -> tuple[str, str] | None:
    """B-PER -> (B, PER), O -> (O, ""); None where the tag has no letter and should."""
    if tag == "O" or (tag == "-" and how == "after"):
        return "O", ""
    if how == "bare":
        return "I", tag
    if how == "before" and tag[1:2] == "-" and tag[0] in LETTERS and tag[2:]:
        return tag[0], tag[2:]
    if how == "after" and tag[-2:-1] in ("-", "_") and tag[-1] in LETTERS and tag[:-2]:
        return tag[-1], tag[:-2]
    return None


def marks(words: Sequence[tuple[int, int]], tags: Sequence[str], how: Style) -> tuple[Mark, ...]:
    """The marks that a tag for each word says, by the words' characters.

    A mark ends where the name changes, where B, S or U begins another, and after E, L, S or U: so no scheme needs telling apart. Names of
    a set that has no O, as parts of speech, go with one word each.
    """
    found: list[Mark] = []
    last = ""
    for (start, end), tag in zip(words, tags, strict=True):
        letter, name = split(tag, how) or ("I", tag)
        if letter != "O" and last and letter not in "BSU" and found[-1].label == name:
            found[-1] = Mark(name, found[-1].start, end)
        elif letter != "O":
            found.append(Mark(name, start, end))
        last = "" if letter in "OELSU" else letter
    return tuple(found)


def iob(words: Sequence[tuple[int, int]], found: Iterable[Mark]) -> list[str]:
    """The tag of each word in IOB2: that of the mark which it shares a character with."""
    tags = ["O"] * len(words)
    for mark in found:
        letter = "B"
        for place, (start, end) in enumerate(words):
            if start < mark.end and mark.start < end:
                tags[place], letter = f"{letter}-{mark.label}", "I"
    return tags


def placed(words: Sequence[str], between: str) -> tuple[str, list[tuple[int, int]]]:
    """The words as one text, and the characters of each."""
    spans, start = [], 0
    for word in words:
        spans.append((start, start + len(word)))
        start += len(word) + len(between)
    return between.join(words), spans


def tagged(tags: Any, spans: Sequence[tuple[int, int]], how: Style, at: str) -> tuple[Mark, ...]:
    """The marks that a list of tags says of so many words."""
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise UserError(f"{at} has words, but no list of tags such as B-PER; write each tag as its name")
    if len(tags) != len(spans):
        raise UserError(f"{at} has {len(spans)} words and {len(tags)} tags; give each word one")
    for tag in tags:
        check(tag, how, at)
    return marks(spans, tags, how)


def check(tag: str, how: Style, at: str) -> None:
    if not tag or split(tag, how) is None:
        raise UserError(f"{at} has the tag {tag!r}, which does not say whether a mark begins or goes on; write it as B-{tag or 'X'} or I-{tag or 'X'}, or O")


# ---- objects with offsets


def listed(value: Any, text: str, at: str, column: str) -> tuple[Mark, ...]:
    """From a list of {"start", "end", "label"}, or of [start, end, label]; in order, within the text, none over another."""
    if not isinstance(value, (list, tuple)):
        raise UserError(f"{at} has no list of marks in {column!r}; write it as [[start, end, label], ...], [] where there are none")
    found = sorted((_mark(one, text, at) for one in value), key=lambda mark: (mark.start, mark.end))
    for first, second in pairwise(found):
        if second.start < first.end:
            raise UserError(
                f"{at} marks {first.label} at {first.start}:{first.end} and {second.label} at {second.start}:{second.end}; let none stand over another"
            )
    return tuple(found)


def _mark(one: Any, text: str, at: str) -> Mark:
    if isinstance(one, Mapping):
        start, end, name = (next((one[key] for key in keys if key in one), None) for keys in (STARTS, ENDS, NAMES))
    else:
        start, end, name = one if isinstance(one, (list, tuple)) and len(one) == 3 else (None, None, None)
    if not isinstance(name, str) or type(start) is not int or type(end) is not int:
        raise UserError(f"{at} has a mark without a start, an end or a label; write it as [start, end, label], with characters counted from 0")
    if not 0 <= start < end <= len(text):
        raise UserError(f"{at} marks {name} at {start}:{end}, which is not within the {len(text)} characters of its text; count characters from 0")
    meant = one.get("text") if isinstance(one, Mapping) else None
    if isinstance(meant, str) and meant != text[start:end]:
        raise UserError(f"{at} marks {name} at {start}:{end} as {meant[:40]!r}, but {text[start:end][:40]!r} stands there; count characters, not bytes")
    return Mark(name, start, end)
