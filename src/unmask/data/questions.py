"""Questions with a context and the places that answer them, as SQuAD has them; and questions with choices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.data.columns import Columns
from unmask.data.tables import Row, Table, text, value
from unmask.errors import UserError

ARTICLES = "paragraphs"  # the field by which an article of SQuAD is known
SQUAD = Columns(text="question", second="context", label="answers", id="id")
LETTERS = "ABCDEFGH"


@dataclass(frozen=True)
class Question:
    question: str
    context: str
    answers: tuple[tuple[int, str], ...]  # where each starts in the context; () where the context does not answer
    name: str
    mended: bool  # whether an answer stood elsewhere than its start said


def questions(table: Table, columns: Columns, unlabelled: bool = False) -> Iterator[Question]:
    """Of SQuAD's nested JSON, or of any table with a question and its context a row."""
    for number, row in _asked(table):
        at, name = table.at(number), named(number, row, columns)
        question, context = text(table, number, row, columns.text), text(table, number, row, columns.second)
        said = () if unlabelled or row.get("is_impossible") is True else _said(row, columns, at)
        found = [(start, _found(start, answer, context, f"question {name!r} on {at}"), answer) for start, answer in said if answer]
        answers = tuple((place, answer) for _, place, answer in found)
        yield Question(question, context, answers, name, any(start != place for start, place, _ in found))


def named(number: int, row: Row, columns: Columns) -> str:
    """A row's id, or else its number."""
    found = value(row, columns.id) if columns.id else None
    return str(number if found in (None, "") else found)


def nested(table: Table) -> bool:
    return ARTICLES in table.names


def _asked(table: Table) -> Iterator[tuple[int, Row]]:
    """The questions one by one; each context is held once, whatever the number of its questions."""
    for number, row in table.rows():
        if not nested(table):
            yield number, row
            continue
        for paragraph in _list(row, ARTICLES, table.at(number)):
            for asked in _list(paragraph, "qas", table.at(number)):
                yield number, {**asked, "context": paragraph.get("context")}


def _list(row: Any, name: str, at: str) -> list[Mapping[str, Any]]:
    found = row.get(name)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise UserError(f"{at} has no list of objects {name!r}, as SQuAD has; write it as data/paragraphs/qas, or a question a line as .jsonl")
    return found


def _said(row: Row, columns: Columns, at: str) -> Iterator[tuple[int | None, str]]:
    """(start, text) of every answer: a list of {"text", "answer_start"}, an object of two lists, or two columns."""
    found, starts = value(row, columns.label), value(row, columns.start) if columns.start else None
    if isinstance(found, Mapping):
        texts, starts = found.get("text"), found.get("answer_start")
    elif isinstance(found, list) and all(isinstance(one, Mapping) for one in found):
        texts, starts = [one.get("text") for one in found], [one.get("answer_start") for one in found]
    else:
        texts = found
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        raise UserError(f'{at} has no answers in {columns.label!r}; write them as [{{"text": ..., "answer_start": ...}}], [] where the context has none')
    places = starts if isinstance(starts, list) else [starts] * len(texts)
    if len(places) != len(texts):
        raise UserError(f"{at} has {len(texts)} answers and {len(places)} starts; give each answer one")
    for place, answer in zip(places, texts, strict=True):
        yield _start(place), answer


def _start(place: Any) -> int | None:
    try:
        return max(int(place), 0)
    except (TypeError, ValueError):
        return None


def _found(start: int | None, answer: str, context: str, at: str) -> int:
    """Where the answer stands: where it is said to, else nearest to there."""
    if start is not None and context.startswith(answer, start):
        return start
    meant = start or 0
    before, after = context.rfind(answer, 0, meant + len(answer)), context.find(answer, meant)
    places = [place for place in (before, after) if place >= 0]
    if not places:
        raise UserError(f"the answer {answer[:40]!r} to {at} does not stand in its context; correct it, or leave the question out")
    return min(places, key=lambda place: abs(place - meant))


# ---- choices


def choices(table: Table, number: int, row: Row, columns: Columns) -> tuple[str, ...]:
    """From a column with a list, or from several columns, of which the last may be empty."""
    at = table.at(number)
    if len(columns.choices) == 1:
        found = _choices(value(row, columns.choices[0]), at, columns.choices[0])
    else:
        found = [text(table, number, row, name).strip() for name in columns.choices]
        while found and not found[-1]:
            found.pop()
    if len(found) < 2 or "" in found:
        raise UserError(f"{at} has an empty choice, or fewer than two; give every question two or more")
    return tuple(found)


def posed(table: Table, number: int, row: Row, columns: Columns, found: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """What the choices follow, and the choices. A question that itself follows a context goes with each choice, as in RACE and SWAG."""
    question = text(table, number, row, columns.text).strip()
    if not columns.second:
        return question, found
    return text(table, number, row, columns.second).strip(), tuple(f"{question} {one}".strip() for one in found)


def _choices(value: Any, at: str, column: str) -> list[str]:
    """A list of texts; of objects with a text; or an object with a list of texts."""
    found = value.get("text") if isinstance(value, Mapping) else value
    if isinstance(found, list):
        found = [one.get("text") if isinstance(one, Mapping) else one for one in found]
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise UserError(f"{at} has no list of texts in {column!r}; write the choices as one")
    return [one.strip() for one in found]


def counting(answers: Sequence[tuple[Any, int]]) -> str:
    """How the first rows name the right choice, of which each gives the answer and how many choices it has: "0" or "1" (from where they count), "A", "text"."""
    if all(str(answer).strip().isdecimal() for answer, _ in answers):
        numbers = [(int(answer), count) for answer, count in answers]
        one = all(1 <= number <= count for number, count in numbers) and any(number == count for number, count in numbers)
        return "1" if one else "0"
    return "A" if all(len(said := str(answer).strip().upper()) == 1 and said in LETTERS for answer, _ in answers) else "text"


def right(answer: Any, how: str, found: Sequence[str], at: str, column: str) -> int:
    """The place of the right choice, from 0."""
    said = str(answer).strip()
    if how == "A":
        place = LETTERS.find(said.upper()) if len(said) == 1 else -1
    elif how == "text":
        place = found.index(said) if said in found else -1
    else:
        place = int(said) - int(how) if said.isdecimal() else -1
    if not 0 <= place < len(found):
        counted = {"A": "counted A, B, ...", "text": "named by their text"}.get(how, f"counted from {how}")
        raise UserError(f"{at} says {said[:40]!r} in {column!r}, which is none of its {len(found)} choices, {counted}; mend it")
    return place
