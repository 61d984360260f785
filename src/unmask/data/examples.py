"""Labelled data for fine-tuning and evaluation, from what people have: tables, GLUE's files, CoNLL's columns, SQuAD's JSON, texts.

What a file is and what its columns are is found from its first rows, said in a sentence, and kept; reading then streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from unmask.data import columns as choosing
from unmask.data import conll, labels, marks, places, questions, splits, tables
from unmask.data.columns import Columns
from unmask.data.corpus import Source
from unmask.data.labels import Reading
from unmask.data.marks import Mark as Mark
from unmask.data.marks import Style
from unmask.data.tables import Row, Table, plain, text, value
from unmask.errors import UserError, near

Answers = Literal["one", "many", "number", "marks", "spans", "choice", "pairs", "none"]
LAYOUTS = (*tables.KINDS, "conll")
MANY = 200  # labels; more than that, and more than half as many as examples, are none


@dataclass(frozen=True)
class Example:
    """What is given to a model and what it should answer.

    `given` is a text, a pair (for spans a question and its context), a question with its choices, or of embed one to three texts. `answer`
    is by `Examples.answers`: one a name, many several, number a float, marks `Mark`s, spans (start, text) of each answer, choice a place.
    """

    given: Any
    answer: Any
    name: str  # its id where the file has one, else its line


@dataclass(frozen=True)
class Plan:
    """How the rows of tables become examples."""

    kind: str
    columns: Columns
    reading: Reading = labels.ONE
    counting: str = ""  # how the right choice is named
    style: Style = "before"  # of tags
    unlabelled: bool = False


@dataclass(frozen=True)
class Examples:
    """Examples in files: every iteration reads them anew."""

    path: str
    kind: str
    said: str  # a sentence about what was taken for what
    answers: Answers
    stream: Callable[[], Iterator[Example]] = field(repr=False, compare=False)
    plan: Plan | None = field(default=None, repr=False)

    def __iter__(self) -> Iterator[Example]:
        none = True
        for example in self.stream():
            none = False
            yield example
        if none:
            raise UserError(f"{self.path} holds no examples; give a file that does")

    def labels(self) -> tuple[str, ...]:
        """The names of all labels, numbers in their order."""
        return self._seen[1]

    def count(self) -> int:
        return self._seen[0]

    @cached_property
    def _seen(self) -> tuple[int, tuple[str, ...]]:
        """How many examples there are, and their labels, from one pass."""
        count, names = 0, set()
        for count, example in enumerate(self, 1):  # noqa: B007 - counts
            if self.answers == "one":
                names.add(example.answer)
            elif self.answers == "many":
                names.update(example.answer)
            elif self.answers == "marks":
                names.update(mark.label for mark in example.answer)
        if self.answers == "one" and len(names) == 1:
            raise UserError(f"{self.path} has one label only, {min(names)!r}; give examples of two or more")
        if self.answers == "one" and len(names) > MANY and 2 * len(names) > count:
            raise UserError(f"{self.path} has {len(names):,} different labels in {count:,} examples; name the column that holds labels with --label NAME")
        if self.answers in ("many", "marks") and not names:
            raise UserError(f"{self.path} has no label anywhere; give examples that have some")
        return count, labels.ordered(names)


def read(
    paths: str | Path | Sequence[str | Path],
    kind: str,
    *,
    layout: str | None = None,
    columns: Mapping[str, str] = {},
    unlabelled: bool = False,
    split: str | None = None,
    encoding: str | None = None,
    like: Examples | None = None,
) -> Examples:
    """The examples in files or a folder. `columns` names the column of a role where guessing would go wrong.

    `split` is train, dev or test, of a folder that has files of each. Evaluation data is read `like` the data that was trained on: with the
    same columns, and the same sort of labels.
    """
    if kind not in choosing.ROLES:
        raise UserError(f"there is no data for {kind!r}{near(kind, choosing.ROLES)}")
    if layout is not None and layout not in LAYOUTS:
        raise UserError(f"--layout {layout} is not known{near(layout, LAYOUTS)}")
    asked = choosing.asked(kind, columns)
    files = splits.files([paths] if isinstance(paths, (str, Path)) else paths, split)
    looked = [tables.looked(path, None if layout == "conll" else layout, encoding) for path in files]
    name = places.said(files[0]) if len(files) == 1 else f"{len(files)} files such as {places.said(files[0])}"
    if kind == "tagging" and (layout == "conll" or (layout is None and _conll(*looked[0], unlabelled))):
        return _sentences(name, [source for source, _ in looked], asked, unlabelled)
    before = like.plan if like and not unlabelled else None
    named = {**(before.columns.named() if before else {}), **asked}
    opened = [tables.opened(source, head, named.values(), choosing.USUAL) for source, head in looked]
    return _rows(name, opened, _plan(kind, opened[0], named, unlabelled, before))


# ---- words with tags


def _conll(source: Source, head: str, unlabelled: bool) -> bool:
    """Whether a file of tagging is words with tags: of labelled plain text it must be."""
    return source.kind in ("tsv", "text") and (not unlabelled or conll.likely(head.split("\n")[:100]))


def _sentences(name: str, sources: Sequence[Source], named: Mapping[str, str], unlabelled: bool) -> Examples:
    shapes = [(source, conll.shape(source, named, unlabelled)) for source in sources]
    said = f"{name}: CoNLL's columns, {conll.said(shapes[0][1])} (--text and --label choose others)"
    return Examples(name, "tagging", said, "none" if unlabelled else "marks", partial(_of_sentences, shapes))


def _of_sentences(shapes: Sequence[tuple[Source, conll.Shape]]) -> Iterator[Example]:
    for source, shape in shapes:
        for number, given, found in conll.sentences(source, shape):
            yield Example(given, found if shape.labelled else None, str(number))


# ---- rows of tables


def _rows(name: str, opened: Sequence[Table], plan: Plan) -> Examples:
    for other in opened[1:]:
        for column in () if questions.nested(other) else plan.columns.all():
            other.has(column)
    stream = partial(_of_questions if plan.kind == "spans" else _of_tables, opened, plan)
    facts, answers = _facts(opened, plan)
    if opened[0].source.kind == "text":
        shown = "a text a line"
    elif plan.columns is questions.SQUAD:
        shown = f"SQuAD's questions{facts and f' ({facts})'}"
    else:
        shown = plan.columns.said(plan.kind, facts)
    return Examples(name, plan.kind, f"{name}: {opened[0].said}, {shown}", answers, stream, plan)


def _plan(kind: str, table: Table, named: Mapping[str, str], unlabelled: bool, like: Plan | None) -> Plan:
    """From the first rows; like another plan where there is one, as labels of few rows may look otherwise."""
    if table.source.kind == "text" and kind != "embed" and not unlabelled:
        raise UserError(f"{table.path} is plain text and has no labels; give csv, tsv, jsonl or parquet with a column of them")
    if table.source.kind == "text":
        return Plan(kind, Columns(text="1"), unlabelled=True)
    if kind == "spans" and questions.nested(table):
        return Plan(kind, questions.SQUAD, unlabelled=unlabelled)
    columns = choosing.chosen(table, kind, named, unlabelled)
    plan = Plan(kind, columns, unlabelled=unlabelled or not columns.label)
    if like:
        return replace(plan, reading=like.reading, counting=like.counting, style=like.style)
    if kind == "embed":
        return replace(plan, reading=Reading("number"))
    if kind == "classify" and not unlabelled:
        return replace(plan, reading=labels.reading((value(row, columns.label) for row in table.sample), plain(columns.label)))
    if kind == "tagging" and not unlabelled:
        lists = [found for row in table.sample if isinstance(found := value(row, columns.label), list)]
        return replace(plan, style=marks.style({tag for tags in lists for tag in tags if isinstance(tag, str)}))
    if kind == "choice" and not unlabelled:
        return replace(plan, counting=_counting(table, columns))
    return plan


def _counting(table: Table, columns: Columns) -> str:
    rows = islice(table.rows(columns.all()), tables.BOUND)
    return questions.counting([(value(row, columns.label), len(questions.choices(table, number, row, columns))) for number, row in rows])


def _facts(opened: Sequence[Table], plan: Plan) -> tuple[str, Answers]:
    """What more a user is told, and the sort of the answers."""
    if plan.kind == "embed" and plan.unlabelled:
        return "", "pairs"
    if plan.unlabelled:
        return "", "none"
    if plan.kind == "tagging":
        return "", "marks"
    if plan.kind == "choice":
        return "named by its text" if plan.counting == "text" else f"counted from {plan.counting}", "choice"
    if plan.kind == "spans":
        mended = sum(asked.mended for table in opened for asked in questions.questions(table, plan.columns))
        return f"{mended:,} answers did not stand where they should start, and are taken from the nearest place" if mended else "", "spans"
    found = [value(row, plan.columns.label) for row in opened[0].sample if not _disputed(row, plan)]
    disputed = ", without those that are -" if len(found) < len(opened[0].sample) else ""
    return labels.said([one for one in found if not labels.missing(one)], plan.reading) + disputed, plan.reading.answers


def _of_questions(opened: Sequence[Table], plan: Plan) -> Iterator[Example]:
    for table in opened:
        for asked in questions.questions(table, plan.columns, plan.unlabelled):
            yield Example((asked.question, asked.context), None if plan.unlabelled else asked.answers, asked.name)


def _of_tables(opened: Sequence[Table], plan: Plan) -> Iterator[Example]:
    made = {"classify": _classified, "embed": _embedded, "tagging": _tagged, "choice": _posed}[plan.kind]
    for table in opened:
        for number, row in table.rows(plan.columns.all()):
            if not _disputed(row, plan):
                yield Example(*made(table, number, row, plan), questions.named(number, row, plan.columns))


def _disputed(row: Row, plan: Plan) -> bool:
    """Whether those who labelled SNLI did not agree on it: such rows are left out, by everybody."""
    return plain(plan.columns.label) == "gold_label" and value(row, plan.columns.label) == "-"


def _classified(table: Table, number: int, row: Row, plan: Plan) -> tuple[Any, Any]:
    columns = plan.columns
    given: Any = text(table, number, row, columns.text).strip()
    if columns.second:
        given = given, text(table, number, row, columns.second).strip()
    return given, None if plan.unlabelled else labels.label(value(row, columns.label), plan.reading, table.at(number), columns.label)


def _embedded(table: Table, number: int, row: Row, plan: Plan) -> tuple[Any, Any]:
    columns = plan.columns
    given = tuple(text(table, number, row, one).strip() for one in (columns.text, columns.second, columns.third) if one)
    return given, None if plan.unlabelled else labels.label(value(row, columns.label), plan.reading, table.at(number), columns.label)


def _tagged(table: Table, number: int, row: Row, plan: Plan) -> tuple[Any, Any]:
    found, at = value(row, plan.columns.text), table.at(number)
    if not isinstance(found, list):
        given = text(table, number, row, plan.columns.text)
        return given, None if plan.unlabelled else marks.listed(value(row, plan.columns.label), given, at, plan.columns.label)
    if not all(isinstance(word, str) for word in found):
        raise UserError(f"{at} has words in {plan.columns.text!r} that are no texts; write each as one")
    given, spans = marks.placed(found, " ")
    return given, None if plan.unlabelled else marks.tagged(value(row, plan.columns.label), spans, plan.style, at)


def _posed(table: Table, number: int, row: Row, plan: Plan) -> tuple[Any, Any]:
    columns, at = plan.columns, table.at(number)
    found = questions.choices(table, number, row, columns)
    answer = None if plan.unlabelled else questions.right(value(row, columns.label), plan.counting, found, at, columns.label)
    return questions.posed(table, number, row, columns, found), answer
