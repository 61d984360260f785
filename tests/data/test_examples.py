"""Labelled data from every layout that people have: what is found, what is said, and one sentence for every fault."""

from __future__ import annotations

import csv
import gzip
import json
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from unmask.data.examples import Example, Examples, Mark, read
from unmask.errors import UserError

REVIEWS = [
    ("A fine, long film about a dog.", "pos"),
    ('He said "never again" and left.', "neg"),
    ("둘째 글은 한국어로 쓰여 있다.", "pos"),
    ("I slept all the way through.", "neg"),
]


def table(path: Path, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    """By its ending: csv, tsv without quotation marks, jsonl, json or parquet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    objects = [dict(zip(names, row, strict=True)) for row in rows] if names else []
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(objects), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(objects, ensure_ascii=False, indent=1), encoding="utf-8")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in objects), encoding="utf-8")
    elif path.suffix == ".tsv":
        path.write_text("".join("\t".join(map(str, row)) + "\n" for row in ([names] if names else []) + list(rows)), encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([*([names] if names else []), *rows])
    return path


def plain(found: Examples) -> list[tuple[Any, Any]]:
    return [(one.given, one.answer) for one in found]


def refused(path: Any, kind: str = "classify", **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        read(path, kind, **options).count()
    message = str(caught.value)
    assert "\n" not in message
    return message


# ---- classify


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "json", "parquet"])
def test_every_kind_of_table_gives_the_same(tmp_path: Path, ending: str) -> None:
    path = table(tmp_path / f"reviews.{ending}", ["id", "review", "sentiment"], [(f"r{number}", *row) for number, row in enumerate(REVIEWS)])
    found = read(path, "classify")
    assert plain(found) == REVIEWS
    assert plain(found) == REVIEWS, "again"
    assert [one.name for one in found] == ["r0", "r1", "r2", "r3"]
    assert (found.kind, found.answers, found.labels(), found.count()) == ("classify", "one", ("neg", "pos"), 4)
    assert found.said == (
        f"{path}: {ending}, the text from column review, the label from column sentiment"
        " (one of 2 in the first rows: neg, pos); --text and --label choose others"
    )


def test_a_table_in_another_encoding_and_packed(tmp_path: Path) -> None:
    path = tmp_path / "reviews.tsv.gz"
    path.write_bytes(gzip.compress(("id\tdocument\tlabel\n" + "1\t이 영화는 정말로 재미있었다\t1\n2\t\t0\n" * 20).encode("cp949")))
    found = read(path, "classify")
    assert plain(found)[:2] == [("이 영화는 정말로 재미있었다", "1"), ("", "0")], "NSMC has empty documents"
    assert ": tsv packed as gz read as CP949 (EUC-KR is part of it), the text from column document" in found.said


def test_names_are_ids_or_else_lines(tmp_path: Path) -> None:
    rows = [("one\ntwo", "a"), ("three", "b")]
    assert [one.name for one in read(table(tmp_path / "a.csv", ["text", "label"], rows), "classify")] == ["3", "4"]
    assert [one.name for one in read(table(tmp_path / "a.parquet", ["text", "label"], rows), "classify")] == ["1", "2"]


GLUE = {
    "SST-2": (
        ["sentence", "label"],
        [("hide new secretions ", "0"), ("loves its characters ", "1")],
        [("hide new secretions", "0"), ("loves its characters", "1")],
    ),
    "CoLA": (
        [],
        [("gj04", "1", "", "Our friends won't buy this."), ("gj04", "0", "*", "Our friends won't buys."), ("cj99", "0", "*?", '"She" is a the.')],
        [("Our friends won't buy this.", "1"), ("Our friends won't buys.", "0"), ('"She" is a the.', "0")],
    ),
    "MRPC": (
        ["\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
        [("1", "7", "8", 'called " the witness "', '" Referring to him'), ("0", "9", "1", '" Yucaipa', "bought it")],
        [(('called " the witness "', '" Referring to him'), "1"), (('" Yucaipa', "bought it"), "0")],
    ),
    "STS-B": (
        ["index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2", "score"],
        [
            (0, "news", "a", "2012", "1", "none", "none", "A plane.", "An air plane.", "5.000"),
            (1, "news", "a", "2012", "4", "none", "none", '"A', "man", "3.800"),
        ],
        [(("A plane.", "An air plane."), 5.0), (('"A', "man"), 3.8)],
    ),
    "RTE": (
        ["index", "sentence1", "sentence2", "label"],
        [(0, "No weapons.", "Weapons.", "not_entailment"), (1, "He died.", "He is dead.", "entailment")],
        [(("No weapons.", "Weapons."), "not_entailment"), (("He died.", "He is dead."), "entailment")],
    ),
    "QNLI": (
        ["index", "question", "sentence", "label"],
        [(0, "When?", "In 1900.", "entailment"), (1, "Who?", "In 1900.", "not_entailment")],
        [(("When?", "In 1900."), "entailment"), (("Who?", "In 1900."), "not_entailment")],
    ),
    "QQP": (
        ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
        [(5, 1, 2, "How?", "How so?", "1"), (6, 3, 4, "Why?", "Where?", "0")],
        [(("How?", "How so?"), "1"), (("Why?", "Where?"), "0")],
    ),
    "MNLI": (
        "index promptID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse sentence1 sentence2 label1 gold_label".split(),
        [
            (i, 1, "fiction", "( a )", "( b )", "(R a)", "(R b)", f"One {i}.", "Two.", "neutral", label)
            for i, label in enumerate(["neutral", "-", "contradiction"])
        ],
        [(("One 0.", "Two."), "neutral"), (("One 2.", "Two."), "contradiction")],
    ),
    "KorSTS": (
        ["genre", "filename", "year", "id", "score", "sentence1", "sentence2"],
        [
            ("news", "MSRvid", "2012", "0001", "5.000", "비행기가 뜬다.", "비행기가 뜬다."),
            ("news", "MSRvid", "2012", "0004", "3.800", "남자가 큰 플루트를 분다.", '"남자가'),
        ],
        [(("비행기가 뜬다.", "비행기가 뜬다."), 5.0), (("남자가 큰 플루트를 분다.", '"남자가'), 3.8)],
    ),
}


@pytest.mark.parametrize("name", GLUE)
def test_glues_own_files(tmp_path: Path, name: str) -> None:
    names, rows, expected = GLUE[name]
    table(tmp_path / name / "train.tsv", names, rows)
    table(tmp_path / name / "dev.tsv", names, rows[:2])
    found = read(tmp_path / name, "classify", split="train")
    assert plain(found) == expected
    assert found.answers == ("number" if isinstance(expected[0][1], float) else "one")
    assert ("without a header" in found.said) == (name == "CoLA")
    assert ("(one of 2 in the first rows: contradiction, neutral, without those that are -)" in found.said) == (name == "MNLI")
    dev = read(tmp_path / name, "classify", split="dev", like=found)
    assert plain(dev) == [one for one in expected if one in plain(dev)]
    assert plain(dev)


def test_glues_test_files_have_no_labels(tmp_path: Path) -> None:
    cola = read(table(tmp_path / "cola.tsv", ["index", "sentence"], [(0, "Bill whistled past the house."), (1, "The car.")]), "classify", unlabelled=True)
    assert list(cola) == [Example("Bill whistled past the house.", None, "0"), Example("The car.", None, "1")]
    assert (cola.answers, cola.labels(), cola.count()) == ("none", (), 2)
    rte = table(tmp_path / "rte.tsv", ["index", "sentence1", "sentence2"], [(0, "One.", "Two.")])
    assert plain(read(rte, "classify", unlabelled=True)) == [(("One.", "Two."), None)]
    (tmp_path / "texts.txt").write_text("one text\n\nanother\n")
    texts = read(tmp_path / "texts.txt", "classify", unlabelled=True)
    assert [(one.given, one.name) for one in texts] == [("one text", "1"), ("another", "3")]
    assert texts.said.endswith(": text, a text a line")


def test_labels_are_guessed_from_what_stands_in_the_columns(tmp_path: Path) -> None:
    rows = [(f"by {number}", f"A remark of some length, number {number}.", "good bad mixed".split()[number % 3]) for number in range(9)]
    found = read(table(tmp_path / "a.csv", ["who", "remark", "verdict"], rows), "classify")
    assert plain(found) == [row[1:] for row in rows]
    bare = read(table(tmp_path / "b.csv", [], rows), "classify")
    assert plain(bare) == plain(found)
    assert "csv without a header, the text from column 2, the label from column 3 (one of 3 in the first rows: bad, good, mixed)" in bare.said


def test_columns_may_be_named(tmp_path: Path) -> None:
    rows = [("one", "two", "x", "1"), ("three", "four", "y", "0")]
    path = table(tmp_path / "a.csv", ["premise", "hypothesis", "label", "other"], rows)
    assert plain(read(path, "classify", columns={"label": "other"})) == [(("one", "two"), "1"), (("three", "four"), "0")]
    assert plain(read(path, "classify", columns={"text": "hypothesis"})) == [("two", "x"), ("four", "y")]
    found = read(path, "classify", columns={"text": "hypothesis", "second": "premise", "id": "other"})
    assert list(found) == [Example(("two", "one"), "x", "1"), Example(("four", "three"), "y", "0")]
    bare = table(tmp_path / "b.csv", [], rows)
    assert plain(read(bare, "classify", columns={"text": "1", "second": "2", "label": "3"})) == [(("one", "two"), "x"), (("three", "four"), "y")]


def test_a_label_inside_an_object_may_be_named(tmp_path: Path) -> None:
    rows = [("one", "two", {"label": 3.7, "binary": 1}), ("three", "four", {"label": 0.2, "binary": 0})]
    path = table(tmp_path / "klue.json", ["sentence1", "sentence2", "labels"], rows)
    assert "item 1 of" in refused(path)
    assert "has an object, not a label, in 'labels'; name a field of it, such as labels.label, with --label" in refused(path)
    assert [one.answer for one in read(path, "classify", columns={"label": "labels.binary"})] == ["1", "0"]


@pytest.mark.parametrize(
    ("column", "values", "answers", "labels"),
    [
        ("stars", ["5", "1", "10", "5"], "one", ("1", "5", "10")),
        ("score", ["5", "1", "3", "5"], "one", ("1", "3", "5")),
        ("score", ["0.5", "1.0", "0.25", "0"], "number", ()),
        ("target", [str(number / 8) for number in range(30)], "number", ()),
        ("label", ["1.0", "0.0", "1.0"], "one", ("0.0", "1.0")),
        ("label", ["a;b", "a", "b;c", "c"], "many", ("a", "b", "c")),
        ("label", ["a|b", "b", "b|c", "c|a"], "many", ("a", "b", "c")),
        ("label", ["a, b", "b", "b, c", "c, a"], "many", ("a", "b", "c")),
        ("label", ["Arts, Crafts", "Home", "Arts, Crafts", "Home"], "one", ("Arts, Crafts", "Home")),
    ],
)
def test_the_sort_of_the_labels(tmp_path: Path, column: str, values: list[str], answers: str, labels: tuple[str, ...]) -> None:
    found = read(table(tmp_path / "a.csv", ["text", column], [(f"text {value}", value) for value in values]), "classify")
    assert (found.answers, found.labels()) == (answers, labels)
    if answers == "number":
        assert [one.answer for one in found] == [float(value) for value in values]


def test_labels_in_lists(tmp_path: Path) -> None:
    path = table(tmp_path / "a.jsonl", ["text", "labels"], [("one", ["a", "b"]), ("two", []), ("three", ["b"])])
    found = read(path, "classify")
    assert plain(found) == [("one", ("a", "b")), ("two", ()), ("three", ("b",))]
    assert "(several of 2 in the first rows: a, b)" in found.said


def test_what_is_evaluated_is_read_like_what_was_trained_on(tmp_path: Path) -> None:
    train = read(table(tmp_path / "train.csv", ["text", "topic"], [("one", "a;b"), ("two", "a"), ("three", "b")]), "classify")
    few = table(tmp_path / "dev.csv", ["text", "topic"], [("four", "a;b"), ("five", "c;a")])
    assert [one.answer for one in read(few, "classify", like=train)] == [("a", "b"), ("c", "a")]
    table(few, ["text", "topics"], [("four", "a")])
    assert refused(few, like=train) == f"{few} has no column 'topic', did you mean topics?"


def test_several_files_are_one(tmp_path: Path) -> None:
    for number in range(2):
        table(tmp_path / "all" / f"part{number}.jsonl", ["text", "label"], [(f"one {number}", "a"), (f"two {number}", "b")])
    found = read(tmp_path / "all", "classify")
    assert [one.given for one in found] == ["one 0", "two 0", "one 1", "two 1"]
    assert found.said.startswith(f"2 files such as {tmp_path}/all/part0.jsonl: jsonl")
    table(tmp_path / "all" / "part1.jsonl", ["text", "class"], [("three", "b")])
    assert refused(tmp_path / "all") == f"{tmp_path}/all/part1.jsonl has no column 'label'; known: class, text"


# ---- tagging

WORDS = "-DOCSTART- X O\n\n# a comment\nAngela X B-PER\nMerkel X I-PER\nsaw X O\n# X O\n\n\nSeoul X B-LOC\n"
MARKED = [("Angela Merkel saw #", (Mark("PER", 0, 13),)), ("Seoul", (Mark("LOC", 0, 5),))]


def test_conll_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    for between in (" ", "\t"):
        path.write_text(WORDS.replace(" ", between).replace(f"#{between}a{between}comment", "# a comment"))
        found = read(path, "tagging")
        assert plain(found) == MARKED
        assert [one.name for one in found] == ["4", "10"]
        assert (found.answers, found.labels()) == ("marks", ("LOC", "PER"))
        assert found.said == f"{path}: CoNLL's columns, words from column 1, tags such as B-X from column 3 (--text and --label choose others)"
    assert [one.answer for one in read(path, "tagging", unlabelled=True)] == [None, None]
    assert refused(path, "tagging", columns={"label": "4"}) == f"{path} has no column '4'; give --label a number from 1 to 3"


@pytest.mark.parametrize(
    "marks", [[[0, 13, "PER"]], [{"start": 0, "end": 13, "label": "PER", "text": "Angela Merkel"}], [{"start_offset": 0, "end_offset": 13, "type": "PER"}]]
)
@pytest.mark.parametrize("column", ["entities", "label", "labels", "spans"])
def test_texts_with_marks(tmp_path: Path, column: str, marks: Any) -> None:
    path = table(tmp_path / "a.jsonl", ["text", column], [("Angela Merkel spoke", marks), ("Nobody did", [])])
    found = read(path, "tagging")
    assert plain(found) == [("Angela Merkel spoke", (Mark("PER", 0, 13),)), ("Nobody did", ())]
    assert found.labels() == ("PER",)


def test_lists_of_words_and_tags(tmp_path: Path) -> None:
    rows = [(["Angela", "Merkel"], ["S-PER", "O"]), (["Bad", "Homburg", "Ems"], ["B-LOC", "I-LOC", "B-LOC"])]
    found = read(table(tmp_path / "a.parquet", ["tokens", "ner_tags"], rows), "tagging")
    assert plain(found) == [("Angela Merkel", (Mark("PER", 0, 6),)), ("Bad Homburg Ems", (Mark("LOC", 0, 11), Mark("LOC", 12, 15)))]
    wrong = table(tmp_path / "c.jsonl", ["tokens", "ner_tags"], [(["Angela", 3], ["O", "O"])])
    assert refused(wrong, "tagging") == f"line 1 of {wrong} has words in 'tokens' that are no texts; write each as one"
    numbers = table(tmp_path / "b.jsonl", ["tokens", "ner_tags"], [(["Angela"], [1])])
    assert refused(numbers, "tagging") == f"line 1 of {numbers} has words, but no list of tags such as B-PER; write each tag as its name"


@pytest.mark.parametrize(
    ("marks", "says"),
    [
        ([[0, 99, "PER"]], "marks PER at 0:99, which is not within the 19 characters of its text; count characters from 0"),
        ([[-1, 3, "PER"]], "marks PER at -1:3, which is not within"),
        ([[3, 3, "PER"]], "marks PER at 3:3, which is not within"),
        ([[0, 13, "PER"], [7, 13, "LOC"]], "marks PER at 0:13 and LOC at 7:13; let none stand over another"),
        ([{"start": 1, "end": 7, "label": "PER", "text": "Angela"}], "marks PER at 1:7 as 'Angela', but 'ngela ' stands there; count characters, not bytes"),
        ([[0, 13]], "has a mark without a start, an end or a label"),
        ("PER", "has no list of marks in 'entities'"),
    ],
)
def test_marks_that_are_wrong(tmp_path: Path, marks: Any, says: str) -> None:
    path = table(tmp_path / "a.jsonl", ["text", "entities"], [("Nobody", []), ("Angela Merkel spoke", marks)])
    assert f"line 2 of {path} {says}" in refused(path, "tagging")


def test_texts_without_marks_to_predict_on(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Angela Merkel spoke.\nSeoul\n")
    assert plain(read(tmp_path / "a.txt", "tagging", unlabelled=True)) == [("Angela Merkel spoke.", None), ("Seoul", None)]
    (tmp_path / "b.txt").write_text(WORDS)
    assert [one.given for one in read(tmp_path / "b.txt", "tagging", unlabelled=True)] == [text for text, _ in MARKED]


# ---- spans


def squad(path: Path, questions: Sequence[Mapping[str, Any]], context: str = "Kim was born in 1912 in Seoul.", **more: Any) -> Path:
    data = [{"title": "x", "paragraphs": [{"context": context, "qas": list(questions)}]}]
    path.write_text(json.dumps({"version": "v2.0", "data": data, **more}))
    return path


BORN = {"id": "q1", "question": "When?", "answers": [{"text": "1912", "answer_start": 16}, {"text": "in 1912", "answer_start": 13}]}
NEVER = {"id": "q2", "question": "Why?", "answers": [], "is_impossible": True, "plausible_answers": [{"text": "Seoul", "answer_start": 24}]}


def test_squad(tmp_path: Path) -> None:
    path = squad(tmp_path / "a.json", [BORN, NEVER])
    found = read(path, "spans")
    context = "Kim was born in 1912 in Seoul."
    assert list(found) == [Example(("When?", context), ((16, "1912"), (13, "in 1912")), "q1"), Example(("Why?", context), (), "q2")]
    assert found.said == f"{path}: json, SQuAD's questions"
    given = [one.given for one in found]
    assert given[0][1] is given[1][1], "held once"
    assert [one.answer for one in read(path, "spans", unlabelled=True)] == [None, None]


def test_answers_that_stand_elsewhere_are_mended_and_counted(tmp_path: Path) -> None:
    context = "in Rome, in Oslo, in Bonn"
    path = squad(
        tmp_path / "a.json", [{"id": str(start), "question": "?", "answers": [{"text": "in", "answer_start": start}]} for start in (0, 4, 7, 19, 99)], context
    )
    found = read(path, "spans")
    assert [one.answer[0][0] for one in found] == [0, 0, 9, 18, 18]
    assert found.said.endswith("SQuAD's questions (4 answers did not stand where they should start, and are taken from the nearest place)")


def test_an_answer_that_is_not_in_its_context(tmp_path: Path) -> None:
    path = squad(tmp_path / "a.json", [BORN, {"id": "q7", "question": "?", "answers": [{"text": "1913", "answer_start": 16}]}])
    assert refused(path, "spans") == (
        f"the answer '1913' to question 'q7' on item 1 of {path} does not stand in its context; correct it, or leave the question out"
    )


@pytest.mark.parametrize("answers", [[{"text": "1912", "answer_start": 16}], {"text": ["1912"], "answer_start": [16]}])
@pytest.mark.parametrize("ending", ["jsonl", "parquet", "json"])
def test_questions_a_row(tmp_path: Path, ending: str, answers: Any) -> None:
    path = table(tmp_path / f"a.{ending}", ["id", "question", "context", "answers"], [("q1", "When?", "Born in May. In 1912.", answers)])
    assert list(read(path, "spans")) == [Example(("When?", "Born in May. In 1912."), ((16, "1912"),), "q1")]


def test_questions_in_columns(tmp_path: Path) -> None:
    path = table(
        tmp_path / "a.csv", ["question", "context", "answer", "answer_start"], [("When?", "In 1912, in 1912.", "1912", 12), ("Why?", "In May.", "", "")]
    )
    found = read(path, "spans")
    assert [one.answer for one in found] == [((12, "1912"),), ()]
    assert "the question from column question, the context from column context, the answers from column answer, the start of the answer from" in found.said


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"id": "q", "question": "?"}, "has no answers in 'answers'"),
        ({"id": "q", "question": "?", "answers": {"text": ["Kim", "Seoul"], "answer_start": [0]}}, "has 2 answers and 1 starts; give each answer one"),
        ({"id": "q", "answers": []}, "has no field 'question'"),
    ],
)
def test_questions_that_are_wrong(tmp_path: Path, asked: Mapping[str, Any], says: str) -> None:
    path = squad(tmp_path / "a.json", [BORN, asked])
    assert f"item 1 of {path} {says}" in refused(path, "spans")
    path.write_text(json.dumps({"data": [{"paragraphs": "x"}]}))
    assert f"item 1 of {path} has no list of objects 'paragraphs', as SQuAD has" in refused(path, "spans")
    table(tmp_path / "b.csv", ["question", "answer"], [("a", "b")])
    assert refused(tmp_path / "b.csv", "spans") == f"{tmp_path}/b.csv has no column that is the context; say which with --second NAME: "


# ---- choice


@pytest.mark.parametrize(
    ("names", "rows", "expected", "said"),
    [
        (
            ["question", "choices", "label"],
            [("Who?", ["I", "you", "he"], 2), ("Why?", ["so", "not"], 0)],
            [(("Who?", ("I", "you", "he")), 2), (("Why?", ("so", "not")), 0)],
            "from 0",
        ),
        (
            ["article", "question", "options", "answer"],
            [("Long ago.", "When?", ["now", "then"], "B")],
            [(("Long ago.", ("When? now", "When? then")), 1)],
            "from A",
        ),
        (["sent1", "sent2", "ending0", "ending1", "label"], [("He stood.", "He", "sat.", "ran.", 1)], [(("He stood.", ("He sat.", "He ran.")), 1)], "from 0"),
        (
            ["goal", "sol1", "sol2", "answer"],
            [("Open it", "push", "pull", 2), ("Shut it", "push", "pull", 1)],
            [(("Open it", ("push", "pull")), 1), (("Shut it", ("push", "pull")), 0)],
            "from 1",
        ),
        (["prompt", "A", "B", "C", "answer"], [("Who?", "I", "you", "he", "c")], [(("Who?", ("I", "you", "he")), 2)], "from A"),
        (["question", "choices", "answer"], [("Who?", ["I", "you"], "you")], [(("Who?", ("I", "you")), 1)], "by its text"),
        (["question", "choices", "answerKey"], [("Who?", {"label": ["A", "B"], "text": ["I", "you"]}, "B")], [(("Who?", ("I", "you")), 1)], "from A"),
    ],
)
def test_choices(tmp_path: Path, names: list[str], rows: list[Any], expected: list[Any], said: str) -> None:
    found = read(table(tmp_path / "a.jsonl", names, rows), "choice")
    assert plain(found) == expected
    assert (found.answers, found.labels()) == ("choice", ())
    assert f"{said}); --text" in found.said


def test_choices_in_csv_may_be_fewer(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", ["question", "choice0", "choice1", "choice2", "label"], [("Who?", "I", "you", "he", 2), ("Why?", "so", "not", "", 0)])
    assert [one.given[1] for one in read(path, "choice")] == [("I", "you", "he"), ("so", "not")]
    assert [one.answer for one in read(path, "choice", unlabelled=True)] == [None, None]


@pytest.mark.parametrize(
    ("choices", "label", "says"),
    [
        (["I", "you"], 2, "says '2' in 'label', which is none of its 2 choices, counted from 0; mend it"),
        (["I", "you"], None, "says 'None' in 'label'"),
        (["I", ""], 0, "has an empty choice, or fewer than two"),
        (["I"], 0, "has an empty choice, or fewer than two"),
        ("I", 0, "has no list of texts in 'choices'"),
    ],
)
def test_choices_that_are_wrong(tmp_path: Path, choices: Any, label: Any, says: str) -> None:
    fine = [("Who?", ["I", "you", "he"], 0)] * 1_000
    path = table(tmp_path / "a.jsonl", ["question", "choices", "label"], [*fine, ("Who?", choices, label)])
    assert f"line 1001 of {path} {says}" in refused(path, "choice")
    path = table(tmp_path / "b.jsonl", ["question", "answer"], [("a", "b")])
    assert refused(path, "choice").startswith(f"{path} has no column of choices; say which with --choices NAME")


# ---- embed


def test_pairs_with_a_score(tmp_path: Path) -> None:
    path = table(tmp_path / "a.tsv", ["genre", "score", "sentence1", "sentence2"], [("x", "5.0", "one", "two"), ("x", "0.5", "three", "four")])
    found = read(path, "embed")
    assert plain(found) == [(("one", "two"), 5.0), (("three", "four"), 0.5)]
    assert found.answers == "number"
    assert "the score from column score (a number from 0.5 to 5)" in found.said


@pytest.mark.parametrize(
    ("names", "row", "given"),
    [
        (["anchor", "positive"], ("a b", "c d"), ("a b", "c d")),
        (["anchor", "positive", "negative"], ("a b", "c d", "e f"), ("a b", "c d", "e f")),
        (["sent0", "sent1", "hard_neg"], ("a b", "c d", "e f"), ("a b", "c d", "e f")),
        (["text"], ("a b",), ("a b",)),
    ],
)
def test_texts_that_belong_together(tmp_path: Path, names: list[str], row: tuple[str, ...], given: tuple[str, ...]) -> None:
    found = read(table(tmp_path / "a.csv", names, [row]), "embed")
    assert (plain(found), found.answers) == ([(given, None)], "pairs")


def test_texts_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one text\n\nanother\n")
    assert plain(read(tmp_path / "a.txt", "embed")) == [(("one text",), None), (("another",), None)]
    (tmp_path / "b.txt").write_text("one\ttwo\nthree\tfour\none\tsix\n")
    assert plain(read(tmp_path / "b.txt", "embed")) == [(("one", "two"), None), (("three", "four"), None), (("one", "six"), None)]


def test_texts_without_a_header_are_pairs_only_where_there_is_nothing_else(tmp_path: Path) -> None:
    scored = table(tmp_path / "a.tsv", [], [("one", "two", "5"), ("three", "four", "1"), ("five", "six", "5")])
    assert plain(read(scored, "embed")) == [(("one", "two"), 5.0), (("three", "four"), 1.0), (("five", "six"), 5.0)]
    more = table(tmp_path / "b.tsv", [], [("news", "2012", "3.5", "one two three", "two three"), ("news", "2012", "1.5", "four five", "six")])
    assert "several columns that may be the text; say which with --text NAME, of a pair also --second NAME: 1, 4, 5" in refused(more, "embed")


def test_names_teach_no_embeddings(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", ["premise", "hypothesis", "label"], [("one", "two", "neutral")])
    assert refused(path, "embed").startswith(f"column 'label' of {path} holds names, and embeddings learn from scores, or from pairs that belong together")


# ---- bad input


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "", "{path} is empty; give a file that holds examples"),
        ("a.csv", "\n \n", "{path} holds nothing but blank lines; give a file that holds examples"),
        ("a.csv", "text,label\n", "{path} has a header and no rows below it; give a file that holds examples"),
        ("a.csv", "text,label\na,x\nb\n", "line 3 of {path} has 1 columns where the first has 2; mend it, or quote cells that hold ','"),
        ("a.csv", "text,label\na,x\nb, c,y\n", "line 3 of {path} has 3 columns where the first has 2; mend it, or quote cells that hold ','"),
        ("a.csv", "text,label\na,x\nb,\n", "line 3 of {path} has no label in 'label'; fill it in, or leave that line out"),
        ("a.csv", "text,label\na,x\nb,nan\n", "line 3 of {path} has no label in 'label'; fill it in, or leave that line out"),
        ("a.csv", "text,label\na,x\nb,x\n", "{path} has one label only, 'x'; give examples of two or more"),
        ("a.csv", "text,label,label\na,x,y\n", "{path} has two columns named 'label'; rename one of them"),
        ("a.csv", "text,other\na long text,b\n", "{path} has no column that looks like labels; say which holds them with --label NAME: other"),
        ("a.csv", "text\na\n", "{path} has no column beside the text; add one with the labels"),
        ("a.csv", "text,stars,topic\na,1,x\n", "{path} has several columns that may be the label; say which with --label NAME: stars, topic"),
        (
            "a.csv",
            "said,heard,label\nabc,abd,x\n",
            "{path} has several columns that may be the text; say which with --text NAME, of a pair also --second NAME: heard, said",
        ),
        ("a.csv", "n,label\n1,x\n", "{path} has no column that holds texts; say which does with --text NAME: n, label"),
        ("a.txt", "a text\nanother\n", "{path} is plain text and has no labels; give csv, tsv, jsonl or parquet with a column of them"),
        (
            "a.jsonl",
            '{"text": "a", "label": "x"}\n{"text": \n',
            "line 2 of {path} is not JSON (Expecting value: line 2 column 1 (char 10)); write one object a line",
        ),
        (
            "a.jsonl",
            '{"text": "a", "label": "x"}\n{"label": "y"}\n',
            "line 2 of {path} has no field 'text'; mend it, or name another column with --text or --second",
        ),
        (
            "a.jsonl",
            '{"text": "a", "label": "x"}\n{"text": 3, "label": "y"}\n',
            "line 2 of {path} has no text in 'text'; mend it, or name another column with --text or --second",
        ),
        ("a.jsonl", '{"text": "a", "label": "x"}\n{"text": "b"}\n', "line 2 of {path} has no label in 'label'; fill it in, or leave that line out"),
        (
            "a.jsonl",
            '{"text": "a", "label": ["1", "0", "0"]}\n',
            "line 1 of {path} has a label twice, or an empty one, in 'label'; name each label that holds once",
        ),
        ("a.jsonl", '{"text": "a", "label": []}\n', "{path} has no label anywhere; give examples that have some"),
        ("a.jsonl", '"a string"\n', "line 1 of {path} is a string, not an object with names; write one object a line"),
        (
            "a.json",
            '[{"text": "a", "label": "x"}, {"text": ]',
            "item 2 of {path} is not JSON (Expecting value: line 1 column 40 (char 39)); write it anew, or one object a line as .jsonl",
        ),
        (
            "a.json",
            '[{"text": "a", "label": "x"}',
            "item 2 of {path} is not JSON (Expecting value: line 1 column 29 (char 28)); write it anew, or one object a line as .jsonl",
        ),
        ("a.json", '["a"]', "item 1 of {path} is no object with names; write each example as one"),
    ],
)
def test_one_sentence_for_every_fault(tmp_path: Path, name: str, content: str, says: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert refused(path) == says.format(path=path)


@pytest.mark.parametrize("kind", ["classify", "tagging", "spans", "choice", "embed"])
def test_a_file_that_is_not_there(tmp_path: Path, kind: str) -> None:
    assert refused(tmp_path / "no.csv", kind) == f"there is no file or folder {tmp_path}/no.csv"
    with pytest.raises(UserError, match="no files were given"):
        read([], kind)


def test_what_is_not_known(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", ["text", "label"], REVIEWS)
    assert refused(path, "clasify") == "there is no data for 'clasify', did you mean classify?"
    assert refused(path, layout="cvs") == "--layout cvs is not known, did you mean csv?"
    assert refused(path, columns={"lable": "label"}) == "classify data has no column for 'lable', did you mean label?"
    assert refused(path, columns={"label": "lable"}) == f"{path} has no column 'lable', did you mean label?"
    assert refused(path, encoding="utf9").startswith("there is no encoding 'utf9'")


def test_a_layout_may_be_said(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text;label\none; two\n")
    assert plain(read(tmp_path / "a.txt", "classify", layout="csv")) == [("one", "two")]
    (tmp_path / "b.csv").write_text("Seoul B-LOC\n")
    assert plain(read(tmp_path / "b.csv", "tagging", layout="conll")) == [("Seoul", (Mark("LOC", 0, 5),))]


def test_numbers_that_are_names_are_refused_late(tmp_path: Path) -> None:
    rows = [*((f"text {number}", number / 8) for number in range(2_000)), ("last", "high")]
    path = table(tmp_path / "a.csv", ["text", "score"], rows)
    assert refused(path) == f"line 2002 of {path} has 'high' in 'score' where the first lines have numbers; mend it, or name another column with --label"


def test_a_column_that_is_no_label(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", ["text", "label"], [(f"text {number}", f"n{number}") for number in range(300)])
    assert refused(path) == f"{path} has 300 different labels in 300 examples; name the column that holds labels with --label NAME"


def test_nuls_are_mended_and_said(tmp_path: Path) -> None:
    path = table(tmp_path / "a.jsonl", ["text", "label"], [("a\0b", "x"), ("c", "y")])
    with pytest.warns(UserWarning, match="holds NULs or halves of surrogate pairs; they are read as U"):
        assert plain(read(path, "classify")) == [("a\ufffdb", "x"), ("c", "y")]


# ---- memory


@pytest.mark.parametrize("ending", ["csv", "jsonl", "json", "parquet", "conll"])
def test_memory_does_not_grow_with_the_data(tmp_path: Path, ending: str, full: bool) -> None:
    count = 200_000 if full or ending == "csv" else 50_000
    path = tmp_path / f"a.{ending}"
    if ending == "conll":
        path.write_text("Seoul B-LOC\nis O\n\n" * count)
    else:
        table(path, ["text", "label"], [(f"a text of some length, number {number}, that goes on and on", number % 2) for number in range(count)])
    tracemalloc.start()
    found = read(path, "tagging" if ending == "conll" else "classify")
    assert found.count() == count
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12_000_000, "the first rows and a block are held, and no more"
