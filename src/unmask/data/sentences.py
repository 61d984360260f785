"""Where sentences end, by rule, in scripts with spaces after a full stop and without.

One pass finds every place where a sentence may end; only a full stop needs a second look, at the word before it. A line break
always ends a sentence. What stays undecidable ("the U.S. Army" or "in the U.S. The army") goes by the word that follows.
"""

from __future__ import annotations

import re

CLOSING = "\"'”’»)\\]」』）】〉》〕］｝"
LOWER = "a-zß-öø-ÿа-яёα-ωάέήίόύώ"
CANDIDATE = re.compile(
    r"\n\s*"
    # Full-width stops need no space; 「行く。」と言った goes on after its quotation. Nothing here gives back what it took (++), else half of it would
    # match; nor starts within a run of stops, which would take the square of its length.
    rf"|[。！？｡।॥؟۔።](?<![。！？｡।॥؟۔።]{{2}})[。！？｡।॥!?.…⋯]*+[{CLOSING}]*+(?![、，,と])\s*"
    # Others need one, and nothing behind it that continues a sentence; or none, where letters decide (`_closes`).
    rf"|[.!?…](?<![.!?…]{{2}})[.!?…]*+(?:[{CLOSING}]*+[^\S\n]++(?![{LOWER}.,;:!?)\]…%]|이?라?[고며]\s|하[고며]\s)|(?=[가-힣A-Z“‘「]))"
)
# Before a name or a number: a sentence never ends with them.
TITLES = frozenset(
    "mr mrs ms mx dr prof rev fr hon st ste gen col maj capt cpt lt cmdr adm sgt cpl pvt gov sen rep pres supt mt ft messrs mme mlle m hr frau sra vs cf eg "
    "ie viz al. op ed eds trans approx ca".split()
)
COUNTED = frozenset(
    "no nos p pp vol vols fig figs ch chap sec art eq pt par jan feb mar apr jun jul aug sept sep oct nov dec nr abs bd ii iii iv vi vii viii ix xi xii".split()
)
# May end a sentence or not; so may anything with dots in it (U.S., a.m.) and an initial.
EITHER = frozenset("inc co corp ltd bros jr sr etc al esq dept univ assn ave blvd rd ph.d b.a m.a u.s u.k".split())
STARTERS = frozenset(
    "The A An He She It They We I You This That These Those There But And In On At As If When While After Before However Although For From His Her Its Their "
    "Our My One Some Many Most What Who Where Why How So Then Yet Since Because During With By To Also Meanwhile Moreover Instead Now Today No Not".split()
)
WORD = re.compile(r"[A-Za-z]+")
ENDINGS = frozenset("다요까죠오음함됨임네라자지군나야어아걸데")  # syllables a Korean sentence ends on
REACH = 14  # letters before a full stop that are looked at; no abbreviation is longer


def sentences(text: str) -> list[tuple[int, int]]:
    """The span of each sentence in characters, none empty; between them is whitespace or nothing."""
    spans: list[tuple[int, int]] = []
    start = len(text) - len(text.lstrip())
    for found in CANDIDATE.finditer(text, start):
        at, after = found.span()
        if at < start or (text[at] in ".!?…" and not _closes(text, start, at, after)):
            continue
        end = len(text[at:after].rstrip()) + at
        if end == at:  # a line break; there may be spaces before it
            end = len(text[start:at].rstrip()) + start if text[at - 1].isspace() else at
        if end > start:
            spans.append((start, end))
        start = after
    end = len(text.rstrip())
    if end > start:
        spans.append((start, end))
    return spans


def _closes(text: str, start: int, at: int, after: int) -> bool:
    """Whether the stop at `at` ends the sentence that began at `start`."""
    if not text[after - 1].isspace() and after < len(text):
        return _closes_without_space(text, at, after)
    if text[at] != "." or text[at + 1 : at + 2] == "." or after == len(text):
        return True
    before = text[max(start, at - REACH) : at]
    word = before[max(before.rfind(" "), before.rfind("\t"), before.rfind("\xa0")) + 1 :].lstrip("\"'“‘«([「")
    if word.isalpha() and len(word) > 5:  # most words: nothing here is so long
        return True
    if not word:
        return True
    small = word.lower()
    following = text[after]
    if small in TITLES or (following.isdigit() and (small in COUNTED or (len(word) == 1 and word.isalpha()))):
        return False
    if word.isdecimal() and at - len(word) == start:  # the number of a list's line
        return len(word) > 3
    if small in EITHER or "." in word or (len(word) == 1 and word.isupper() and word != "I"):
        name = WORD.match(text, after)
        return not following.isascii() or (name is not None and name[0] in STARTERS) or following in "\"'(["
    return True


def _closes_without_space(text: str, at: int, after: int) -> bool:
    """`했다.그는` and `ended.The` lack a space; `3.1운동`, `U.S.A` and `node.JS` do not."""
    before, following = text[max(0, at - 3) : at], text[after]
    if "가" <= following <= "힣":
        return before[-1:] in ENDINGS and "가" <= before[-2:-1] <= "힣"
    if following in "“‘「":
        return before[-1:].isalpha() and not before[-1:].isupper()
    return len(before) == 3 and before.isalpha() and before.islower() and before != "www" and text[after + 1 : after + 2].islower()
