"""Which column of a table is what: by their usual names, else by what stands in them; where that is not clear, the user is asked."""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.data import records
from unmask.data.labels import missing
from unmask.data.tables import Table, plain, value
from unmask.errors import UserError, near

ROLES = {  # what may be asked for by name, and what the user is told it is
    "classify": {"text": "text", "second": "second text", "label": "label", "id": "id"},
    "embed": {"text": "text", "second": "second text", "third": "text that does not belong", "label": "score", "id": "id"},
    "tagging": {"text": "text", "label": "marks", "id": "id"},
    "spans": {"text": "question", "second": "context", "label": "answers", "start": "start of the answer", "id": "id"},
    "choice": {"text": "question", "second": "context", "choices": "choices", "label": "right one", "id": "id"},
}
SINGLE = (*records.FIELDS, "tweet", "utterance", "message", "query", "question", "description", "headline", "title", "input", "string")
PAIRS = (
    *(tuple(map(plain, pair)) for pair in records.PAIRS),
    *(tuple(pair.split()) for pair in ("question sentence", "query passage", "query document", "question answer", "claim evidence", "anchor positive")),
    *(tuple(pair.split()) for pair in ("sent0 sent1", "sent1 sent2", "s1 s2", "text_a text_b", "sentence_a sentence_b", "query positive", "query pos")),
)
TRIPLES = tuple(tuple(some.split()) for some in ("anchor positive negative", "query positive negative", "query pos neg", "sent0 sent1 hard_neg"))
SURE = ("gold_label", "label", "labels")  # nothing else bears these names
LIKELY = tuple(
    "class category target sentiment score stars star rating similarity similarity_score relatedness_score quality is_duplicate emotion intent topic"
    " polarity class_index y".split()
)
SCORES = ("score", "similarity", "similarity_score", "relatedness_score", "label", "labels", "rating")
IDS = ("id", "idx", "index", "guid", "uid", "pairid", "pair_id", "example_id", "video_id", "unnamed:_0", "")
MARKS = ("entities", "spans", "labels", "label", "ner_tags", "tags")
WORDS = ("tokens", "words")
CONTEXTS = ("context", "passage", "article", "document", "paragraph", "premise", "sent1", "ctx_a", "ctx", "text")
QUESTIONS = ("question", "query", "goal", "prompt", "sent2", "ctx_b", "startphrase", "sentence")
ANSWERS = ("answers", "answer", "answer_text")
STARTS = ("answer_start", "start", "answer_begin_position")
CHOICES = ("choices", "options", "endings", "candidates", "answers")
NUMBERED = re.compile(r"(choice|ending|option|answer|sol|solution|candidate)_?(\d|[a-h])")
RIGHT = (*SURE, "answer", "answerkey", "answer_key", "correct", "correct_answer", "gold", "target")
USUAL = frozenset(
    {*SINGLE, *SURE, *LIKELY, *SCORES, *(IDS[:-1]), *MARKS, *WORDS, *CONTEXTS, *QUESTIONS, *ANSWERS, *STARTS, *CHOICES, *RIGHT}
    | {name for some in (*PAIRS, *TRIPLES) for name in some}
)
DISTINCT, LETTERS = 50, 40  # a column of labels without a usual name has no more of them, and none longer


@dataclass(frozen=True)
class Columns:
    """The column of each role; "" where there is none."""

    text: str = ""
    second: str = ""
    third: str = ""
    label: str = ""
    start: str = ""
    choices: tuple[str, ...] = ()
    id: str = ""

    def all(self) -> tuple[str, ...]:
        """The columns that are read, of an object's field the object."""
        names = (self.text, self.second, self.third, self.label, self.start, *self.choices, self.id)
        return tuple(name for one in names if one for name in (one, one.partition(".")[0]))

    def named(self) -> dict[str, str]:
        """As a user would name them; the id is nothing to hold to."""
        roles = {"text": self.text, "second": self.second, "third": self.third, "label": self.label, "start": self.start}
        return {role: name for role, name in {**roles, "choices": ",".join(self.choices)}.items() if name}

    def said(self, kind: str, facts: str = "") -> str:
        """For people: what is taken from where, what more is known of it, and how to choose others."""
        roles = {role: name for role, name in ROLES[kind].items() if role != "id" and getattr(self, role)}
        taken = ", ".join(f"the {name} from column {_listed(getattr(self, role))}" for role, name in roles.items())
        *flags, last = (f"--{role}" for role in roles)
        return f"{taken}{facts and f' ({facts})'}; {', '.join(flags)} and {last} choose others" if flags else f"{taken}; {last} chooses another"


def asked(kind: str, columns: Mapping[str, str]) -> dict[str, str]:
    """What the user named, of roles that there are."""
    for role in columns:
        if role not in ROLES[kind]:
            raise UserError(f"{kind} data has no column for {role!r}{near(role, ROLES[kind])}")
    return {role: name for role, name in columns.items() if name}


def chosen(table: Table, kind: str, named: Mapping[str, str], unlabelled: bool = False) -> Columns:
    """The columns that are meant, of which the user named some."""
    spared = ("label", "start") if unlabelled else ()  # the user may name them all the same, as of the data that was trained on
    guess = _Guess(table, {role: name for role, name in named.items() if role not in spared or name in table.names}, unlabelled)
    guess.take("id", IDS)
    {"classify": _classify, "embed": _embed, "tagging": _tagging, "spans": _spans, "choice": _choice}[kind](guess)
    return Columns(**{role: name for role, name in guess.found.items() if role not in spared}, choices=guess.choices)


class _Guess:
    """What is found so far. What the user named stays; the rest is taken in the order in which it is least in doubt."""

    def __init__(self, table: Table, named: Mapping[str, str], unlabelled: bool) -> None:
        self.table, self.named, self.unlabelled = table, named, unlabelled
        self.found = {role: table.has(name) for role, name in named.items() if role != "choices"}
        self.choices = tuple(map(table.has, records.parts(named["choices"], table.names))) if "choices" in named else ()

    def free(self) -> list[str]:
        taken = {name.partition(".")[0] for name in (*self.found.values(), *self.choices)} | {*self.found.values()}
        return [name for name in self.table.names if name not in taken]

    def usual(self, names: Sequence[str]) -> list[str]:
        """The free columns with one of these names, in the order of the names."""
        small = {plain(name): name for name in reversed(self.free())}
        return [small[name] for name in names if name in small]

    def take(self, role: str, names: Sequence[str]) -> None:
        if role not in self.found and (usual := self.usual(names)):
            self.found[role] = usual[0]

    def together(self, roles: Sequence[str], groups: Sequence[Sequence[str]]) -> None:
        """The first of the groups that is there whole, unless the user named one of its roles or it was found."""
        for group in groups:
            columns = self.usual(group)
            if len(columns) == len(group) and self.found.keys().isdisjoint(roles):
                self.found.update(zip(roles, columns, strict=True))

    def values(self, column: str) -> list[Any]:
        return [value(row, column) for row in self.table.sample]

    def textual(self) -> list[str]:
        """The free columns that hold texts, and not numbers only."""
        found = []
        for name in self.free():
            cells = [one for one in self.values(name) if one not in (None, "")]
            if cells and all(isinstance(one, str) for one in cells) and not all(map(_number, cells)):
                found.append(name)
        return found

    def longest(self) -> None:
        """The text is the column of the longest cells, where none comes near it."""
        if "text" in self.found:
            return
        textual = self.textual()
        varied = [name for name in textual if not self.recurs(name)] or textual
        sizes = sorted(((sum(len(one or "") for one in self.values(name)), name) for name in varied), reverse=True)
        if not sizes:
            raise UserError(f"{self.table.path} has no column that holds texts; say which does with --text NAME: {_listed(self.table.names)}")
        if len(sizes) > 1 and 2 * sizes[1][0] > sizes[0][0]:
            several = _listed(sorted(name for _, name in sizes))
            raise UserError(f"{self.table.path} has several columns that may be the text; say which with --text NAME, of a pair also --second NAME: {several}")
        self.found["text"] = sizes[0][1]

    def recurs(self, column: str) -> bool:
        """Whether few short values stand in it again and again, as labels do."""
        cells = [str(one) for one in self.values(column) if not missing(one) and not isinstance(one, (list, dict))]
        kinds = set(cells)
        full = len(cells) >= 0.95 * len(self.table.sample)
        return full and 2 <= len(kinds) <= min(DISTINCT, max(len(cells) // 2, 2)) and len(kinds) < len(cells) and all(len(one) <= LETTERS for one in kinds)


def _classify(guess: _Guess) -> None:
    if _is_cola(guess):
        guess.found.update(text="4", label="2")
    if not guess.unlabelled:
        _label_by_name(guess)
    guess.together(("text", "second"), PAIRS)
    guess.take("text", SINGLE)
    guess.longest()
    if not guess.unlabelled and "label" not in guess.found:
        guess.found["label"] = _only(guess, [name for name in guess.free() if guess.recurs(name)])


def _is_cola(guess: _Guess) -> bool:
    """GLUE's CoLA has no header, and of its four columns two could be the labels."""
    table = guess.table
    if table.source.header or len(table.names) != 4 or guess.named:
        return False
    return all(row["2"] in ("0", "1") and not row["3"].strip(" *?") for row in table.sample)


def _label_by_name(guess: _Guess) -> None:
    guess.take("label", SURE)
    if "label" not in guess.found and (likely := guess.usual(LIKELY)):
        guess.found["label"] = _only(guess, likely)


def _only(guess: _Guess, columns: Sequence[str]) -> str:
    if len(columns) == 1:
        return columns[0]
    if not guess.free():
        raise UserError(f"{guess.table.path} has no column beside the text; add one with the labels")
    if columns:
        raise UserError(f"{guess.table.path} has several columns that may be the label; say which with --label NAME: {_listed(columns)}")
    raise UserError(f"{guess.table.path} has no column that looks like labels; say which holds them with --label NAME: {_listed(guess.free())}")


def _embed(guess: _Guess) -> None:
    guess.together(("text", "second", "third"), TRIPLES)
    guess.together(("text", "second"), PAIRS)
    if not guess.table.source.header and not guess.named and len(guess.textual()) in (len(guess.table.names), len(guess.table.names) - 1):
        guess.found.update(zip(("text", "second", "third"), guess.textual(), strict=False))  # as people write pairs down: one more may be a score
    guess.take("text", SINGLE)
    guess.longest()
    if "second" not in guess.found or "third" in guess.found or "label" in guess.found or guess.unlabelled:
        return
    usual = guess.usual(SCORES) if guess.table.source.header else guess.free()
    scores = [name for name in usual if all(missing(one) or _number(one) for one in guess.values(name))]
    if scores:
        guess.found["label"] = scores[0]
    elif labels := guess.usual(SURE):
        raise UserError(
            f"column {labels[0]!r} of {guess.table.path} holds names, and embeddings learn from scores, or from pairs that belong together;"
            " keep the lines whose texts do, without that column"
        )


def _tagging(guess: _Guess) -> None:
    if not guess.unlabelled:
        guess.take("label", MARKS)
        if "label" not in guess.found:
            raise UserError(f"{guess.table.path} has no column of marks; say which holds them with --label NAME: {_listed(guess.free())}")
        first = next((one[0] for one in guess.values(guess.found["label"]) if isinstance(one, (list, tuple)) and one), None)
        if isinstance(first, (str, int)):
            guess.take("text", WORDS)
    guess.take("text", SINGLE)
    guess.take("text", WORDS)
    guess.longest()


def _spans(guess: _Guess) -> None:
    guess.take("text", QUESTIONS)
    guess.take("second", CONTEXTS)
    if not guess.unlabelled:
        guess.take("label", ANSWERS)
        guess.take("start", STARTS)
    for role, name in ROLES["spans"].items():
        if role not in guess.found and role not in ("id", "start", *(["label"] if guess.unlabelled else [])):
            raise UserError(f"{guess.table.path} has no column that is the {name}; say which with --{role} NAME: {_listed(guess.free())}")


def _choice(guess: _Guess) -> None:
    if not guess.choices:
        guess.choices = _numbered(guess.free())
    if not guess.choices:
        guess.choices = tuple(name for name in guess.usual(CHOICES) if any(isinstance(one, (list, dict)) for one in guess.values(name)))[:1]
    if not guess.choices:
        raise UserError(f"{guess.table.path} has no column of choices; say which with --choices NAME, or NAME,NAME,...: {_listed(guess.free())}")
    if not guess.unlabelled:
        guess.take("label", RIGHT)
        if "label" not in guess.found:
            raise UserError(f"{guess.table.path} has no column that says which choice is right; say which does with --label NAME: {_listed(guess.free())}")
    if "text" not in guess.named:
        guess.take("second", CONTEXTS)
    guess.take("text", QUESTIONS)
    if "text" not in guess.found and "second" in guess.found and "second" not in guess.named:
        guess.found["text"] = guess.found.pop("second")
    guess.longest()


def _numbered(names: Sequence[str]) -> tuple[str, ...]:
    """ending0, ending1, ...; or A, B, ..."""
    groups: dict[str, dict[str, str]] = defaultdict(dict)
    for name in names:
        found = NUMBERED.fullmatch(plain(name))
        if found:
            groups[found[1]][found[2]] = name
        elif len(name) == 1 and name.lower() in "abcdefgh":
            groups[""][name.lower()] = name
    largest = max(groups.values(), key=len, default={})
    return tuple(largest[key] for key in sorted(largest)) if len(largest) > 1 else ()


def _number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True


def _listed(names: str | Sequence[str]) -> str:
    """Names for people, who may have been given texts for names where there is no header."""
    return ", ".join(textwrap.shorten(name, LETTERS, placeholder="...") for name in ([names] if isinstance(names, str) else names))
