"""The doctor counts what is made for it: texts, scripts, faults, copies, leaks and labels."""

from __future__ import annotations

import csv
import json
import pydoc_data.topics
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from unmask.data import doctor
from unmask.data.corpus import sources
from unmask.data.doctor import Labels, Leak, Profile, Report, examine, language
from unmask.errors import UserError

TOPICS = list(pydoc_data.topics.topics.values())
WORDS = [word for text in TOPICS for word in text.split() if word.isalpha()]
KOREAN = "나는 어제 학교에서 친구를 만났다. 우리는 함께 점심을 먹고 도서관에 갔다. 날씨가 무척 좋았다."
JAPANESE = "今日は友達と一緒に図書館へ行きました。天気がとても良かったです。カフェでコーヒーも飲みました。"
CHINESE = "今天我和朋友一起去了图书馆。天气非常好。我们也喝了咖啡。"
GERMAN = "Der Zug fährt über die Brücke, und die Kinder grüßen von dem Ufer. Es ist nicht mehr früh. Die Straße führt zu einem Fluss."
FRENCH = "L’été dernier, les élèves sont allés à la forêt « près du château » pour une fête. Où est le garçon qui a reçu la lettre\xa0? Ça va, Noël\xa0»."
RUSSIAN = "Вчера мы с друзьями пошли в библиотеку. Погода была очень хорошая. Потом мы выпили кофе."
DESK = {"English": TOPICS[0], "Korean": KOREAN, "Japanese": JAPANESE, "Chinese": CHINESE, "German": GERMAN, "French": FRENCH, "in Cyrillic script": RUSSIAN}


def jsonl(path: Path, texts: Sequence[str]) -> Path:
    """With escapes, so that halves of surrogate pairs can be written too."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def looked(place: Path, texts: Sequence[str], other: Sequence[str] = ()) -> Report:
    against = sources([jsonl(place / "other.jsonl", other)]) if other else ()
    return examine(sources([jsonl(place / "texts.jsonl", texts)]), against)


def profile(place: Path, texts: Sequence[str]) -> Profile:
    return looked(place, texts).profile


def leaked(place: Path, texts: Sequence[str], other: Sequence[str]) -> Leak:
    found = looked(place, texts, other).leak
    assert found is not None
    return found


def table(path: Path, rows: Sequence[tuple[str, str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


def labelled(place: Path, rows: Sequence[tuple[str, str]], other: Sequence[tuple[str, str]] = ()) -> tuple[Labels, Report]:
    against = sources([table(place / "other.csv", other)], column="text") if other else ()
    found = examine(sources([table(place / "rows.csv", rows)], column="text"), against, "label")
    assert found.labels is not None
    return found.labels, found


def made(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(WORDS, k=words))


# ---- counts


def test_documents_words_and_sentences_are_counted(tmp_path: Path) -> None:
    texts = ["One two. Three four five.", "Six seven.", "나는 갔다. 너도 왔다. 끝.", "猫が好き。"]
    found = profile(tmp_path, texts)
    assert (found.documents, found.words, found.sentences) == (4, 5 + 2 + 5 + 4, 2 + 1 + 3 + 1)
    assert found.characters == sum(map(len, texts))
    assert found.pairs == 0.5
    assert (found.copies, found.near, found.lines, found.faults, found.sampled) == (0, 0, 0, {}, False)


def test_the_spread_of_lengths(tmp_path: Path) -> None:
    draw = random.Random(0)
    texts = [made(draw, count) for count in range(1, 102)]
    draw.shuffle(texts)
    found = profile(tmp_path, texts)
    assert found.lengths == {"shortest": 1, "5%": 6, "25%": 26, "median": 51, "75%": 76, "95%": 96, "99%": 100, "longest": 101}
    assert found.histogram == {1: 1, 2: 2, 4: 4, 8: 8, 16: 16, 32: 32, 64: 38}


def test_lengths_of_many_documents_are_sampled_but_not_their_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "KEPT", 50)
    draw = random.Random(0)
    texts = [made(draw, draw.randint(10, 30)) for _ in range(1_000)]
    texts[17], texts[601] = "one", made(draw, 500)
    found = profile(tmp_path, texts).lengths
    assert (found["shortest"], found["longest"]) == (1, 500)
    assert found["median"] == pytest.approx(20, abs=4)
    lengths = doctor._Lengths()
    for length in range(1_000):
        lengths.add(length)
    assert len(lengths.kept) <= 50
    assert lengths.kept == list(range(0, 1_000, lengths.step))


def test_a_document_without_words_is_one_of_none(tmp_path: Path) -> None:
    found = profile(tmp_path, ["...", "one two three four"])
    assert found.histogram == {0: 1, 4: 1}
    assert found.lengths["shortest"] == 0
    assert profile(tmp_path, ["... !"]).languages == {"no letters": 1}


def test_all_files_are_told_and_counted(tmp_path: Path) -> None:
    told: list[str] = []
    (tmp_path / "a.txt").write_text("One.\n\nTwo.\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("Three.\n\nFour.\n\nFive.\n", encoding="utf-8")
    found = examine(sources([tmp_path]), tell=told.append)
    assert told == ["One.", "Two.", "Three.", "Four.", "Five."]
    assert found.profile.documents == 5
    assert any("documents separated by blank lines" in line for line in found.said)


def test_whether_sentence_pairs_can_be_formed(tmp_path: Path) -> None:
    single = [f"Only sentence number {number} here." for number in range(97)]
    assert profile(tmp_path, [*single, *["One. Two."] * 3]).pairs == 0.03
    found = looked(tmp_path, single)
    assert found.profile.pairs == 0
    assert any(one.severity == "bad" and "0% of the documents have two sentences" in one.what for one in found.findings)


# ---- scripts, languages and faults


@pytest.mark.parametrize("name", DESK)
def test_the_language_is_told(tmp_path: Path, name: str) -> None:
    assert language(DESK[name]) == name
    assert profile(tmp_path, [DESK[name]]).languages == {name: 1}


def test_scripts_and_languages_by_share(tmp_path: Path) -> None:
    found = profile(tmp_path, ["aé" * 30, "가나" * 10, "жд" * 5, "123 ?!"])
    assert found.scripts == pytest.approx({"Latin": 6 / 9, "Hangul": 2 / 9, "Cyrillic": 1 / 9})
    texts = list(DESK.values())
    found = profile(tmp_path, texts)
    assert found.languages == pytest.approx({name: len(text) / sum(map(len, texts)) for name, text in DESK.items()})
    assert list(found.languages.values()) == sorted(found.languages.values(), reverse=True)
    assert sum(found.scripts.values()) == pytest.approx(1)
    assert profile(tmp_path, [JAPANESE]).scripts.keys() == {"Kana", "Han"}
    assert profile(tmp_path, ["λόγος שלום กขค नमक سلام ሰላም"]).scripts.keys() == {"Greek", "Hebrew", "Thai", "Devanagari", "Arabic", "other"}


FAULTY = {
    "replaced": ["caf\ufffd", "\ufffd\ufffd"],
    "NUL": ["a\0b"],
    "control": ["a\x07b", "a\x1bb", "a\x7fb", "a\x9fb"],
    "surrogate": ["\ud800", "x\udfffy"],
    "mojibake": [
        "café".encode().decode("latin-1"),
        "It’s “so”.".encode().decode("cp1252", "ignore"),
        "学校".encode().decode("latin-1"),
        RUSSIAN.encode().decode("latin-1"),
        KOREAN.encode().decode("latin-1"),
        KOREAN.encode("cp949").decode("latin-1"),
        GERMAN.encode().decode("latin-1"),
        "It’s".encode().decode("latin-1"),
        "\ufeffStart".encode().decode("latin-1"),
    ],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in FAULTY.items() for text in texts])
def test_faults_are_found(tmp_path: Path, kind: str, text: str) -> None:
    found = looked(tmp_path, [text, TOPICS[0], f"{text} and {text}", TOPICS[1]])
    assert found.profile.faults[kind] == 2
    if kind != "mojibake":  # half of what is read wrongly are control characters as well
        assert found.profile.faults == {kind: 2}
    assert found.bad == (kind != "control")
    assert any("2 of 4 documents" in one.what for one in found.findings)


@pytest.mark.parametrize(
    "text", [*DESK.values(), "ÀÉÎ ÇÃO NÃO São João", "1장 ············ 3", "°°°°°°°°", "½¾ °C ±3 µm ×²", "ÄÖÜ ß «Ü» »ä« À »", "España. ¿Qué? ¡Niñº!"]
)
def test_clean_text_has_no_faults(tmp_path: Path, text: str) -> None:
    assert profile(tmp_path, [text, f"{text}\n\ttab\r\nand line {text.upper()}"]).faults == {}


@pytest.mark.parametrize(
    ("kind", "before", "fault", "after"),
    [
        ("txt", "one\n\nt", b"\0\xdc", "\n"),
        ("txt", "one\n\nt", b"\xd8\xd8", "wo"),
        ("txt", "one\n\ntwo", b"A", ""),
        ("csv", "text\none\nt", b"\0\xdc", "wo\n"),
        ("csv", "text\none\ntwo", b"\xff", ""),
        ("jsonl", '{"text": "one"}\n{"text": "t', b"\0\xdc", '"}\n'),
    ],
)
def test_bytes_that_are_not_utf_16(tmp_path: Path, kind: str, before: str, fault: bytes, after: str) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes(before.encode("utf-16") + fault + after.encode("utf-16-le"))
    found = examine(sources([path]))
    assert found.profile.documents == 2
    assert found.profile.faults == {"bytes": 1}
    assert found.bad


def test_a_byte_that_is_not_of_the_encoding_in_a_short_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"text\none plain row of text\ncaf\xe9 and more words\n" + "é".encode() * 9)
    assert examine(sources([tmp_path / "a.csv"], encoding="utf-8")).profile.faults == {"bytes": 1}


def test_a_form_feed_and_emoji_are_no_faults(tmp_path: Path) -> None:
    assert profile(tmp_path, ["one\x0ctwo 😀 👩‍👩‍👧 𠀀"]).faults == {}


# ---- copies


def test_exact_copies_near_copies_and_lines_are_told_apart(tmp_path: Path) -> None:
    draw = random.Random(0)
    texts = [made(draw, 100) for _ in range(20)]
    copies = [f" {text}\n" for text in texts[:5]]
    near = [f"{text.upper()}." for text in texts[5:12]]
    found = profile(tmp_path, [*texts, *copies, *near])
    assert found.copies == pytest.approx(5 / 32)
    assert found.near == pytest.approx(7 / 32)
    assert found.lines == pytest.approx(5 / 32)


def test_long_lines_that_return_are_counted_and_short_ones_not(tmp_path: Path) -> None:
    draw = random.Random(0)
    menu = "Home | Products | About us | Contact | Imprint"
    found = profile(tmp_path, [f"{menu}\n{made(draw, 30)}\nYes." for _ in range(50)])
    assert (found.lines, found.copies, found.near) == (pytest.approx(0.49), 0, 0)


# ---- a second data set


def test_whole_copies_leak(tmp_path: Path) -> None:
    draw = random.Random(0)
    texts = [made(draw, 50) for _ in range(40)]
    other = [*texts[:5], *(made(draw, 50) for _ in range(15))]
    assert leaked(tmp_path, texts, other) == Leak(20, 0.25, 0.25, 0.25)
    assert leaked(tmp_path, texts * 3, [f" {text}\n" for text in other]) == Leak(20, 0.25, 0.25, 0.25)


def test_runs_of_thirteen_words_leak(tmp_path: Path) -> None:
    draw = random.Random(0)
    other = [made(draw, 40) for _ in range(20)]
    halves = [text.split() for text in other]
    texts = [" ".join(halves[0][:13]), made(draw, 9) + " " + " ".join(halves[1][5:38]), " ".join(halves[2][:12]), made(draw, 200)]
    assert leaked(tmp_path, texts, other) == Leak(20, 0, 2 / 20, 1 / 20)
    assert leaked(tmp_path, [text.upper() for text in texts], other) == Leak(20, 0, 2 / 20, 1 / 20), "case aside"


def test_nothing_leaks_between_different_texts(tmp_path: Path) -> None:
    draw = random.Random(0)
    found = looked(tmp_path, [made(draw, 60) for _ in range(50)], [made(draw, 60) for _ in range(50)])
    assert found.leak == Leak(50, 0, 0, 0)
    assert not any("other data set" in one.what for one in found.findings)


def test_short_texts_leak_as_a_whole(tmp_path: Path) -> None:
    assert leaked(tmp_path, ["나는 학교에 갔다.", "Yes, I do."], ["나는 학교에 갔다.", "yes i do", "Yes, I", "..."]) == Leak(4, 1 / 4, 2 / 4, 2 / 4)


def test_a_leak_is_whole_however_often_it_stands_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.duplicates.Copies.__init__, "__defaults__", (50,))
    assert leaked(tmp_path, [TOPICS[0][:200]] * 300 + [TOPICS[1][:200]], [TOPICS[0][:200], TOPICS[1][:200]]).whole == 1


def test_leaks_are_found_in_chinese(tmp_path: Path) -> None:
    assert leaked(tmp_path, [f"他说，{CHINESE}是的。"], [CHINESE, "完全不同的一句话，没有任何人听过它的内容。"]) == Leak(2, 0, 0.5, 0.5)


def test_the_second_data_set_alone_has_no_part_in_the_profile(tmp_path: Path) -> None:
    assert looked(tmp_path, TOPICS[:3], TOPICS[3:9]).profile == profile(tmp_path, TOPICS[:3])


# ---- labels


def test_labels_are_counted(tmp_path: Path) -> None:
    draw = random.Random(0)
    rows = [(made(draw, 20), "good") for _ in range(6)] + [(made(draw, 20), "bad") for _ in range(3)]
    found, report = labelled(tmp_path, [*rows, ("", "good"), (" ", "bad"), (made(draw, 20), ""), (made(draw, 20), " ")])
    assert found == Labels(rows=13, counts={"good": 7, "bad": 4}, empty=2, missing=2, conflicting=0, example="")
    assert list(found.counts) == ["good", "bad"]
    assert report.profile.documents == 11, "those with text"
    assert {one.what for one in report.findings if one.severity == "bad"} == {"2 of 13 rows have no text", "2 of 13 rows have no label"}
    assert not any("words in all" in one.what for one in report.findings), "a labelled table is not to pretrain on"


@pytest.mark.parametrize("seed", range(4))
def test_rows_that_conflict_are_counted_whatever_their_order(tmp_path: Path, seed: int) -> None:
    rows = (
        [("The same text.", "a")] * 3 + [(" The  same\ntext. ", "b")] + [("Other text.", "a")] * 2 + [("Third.", "b"), ("Third.", "c")] + [("", "a"), ("", "b")]
    )
    random.Random(seed).shuffle(rows)
    found, report = labelled(tmp_path, rows)
    assert found.conflicting == 4 + 2
    assert " ".join(found.example.split()) in ("The same text.", "Third.")
    assert any("6 of 10 rows have a text that stands elsewhere with another label" in one.what and one.severity == "bad" for one in report.findings)


def test_of_too_many_texts_only_the_first_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "KEPT", 1)
    rows = [("first", "a"), ("second", "a"), ("second", "b"), ("first", "b")]
    assert labelled(tmp_path, rows)[0].conflicting == 2


def test_one_label_is_nothing_to_learn(tmp_path: Path) -> None:
    found, report = labelled(tmp_path, [(text[:300], "x") for text in TOPICS[:5]])
    assert found.counts == {"x": 5}
    assert [one.what for one in report.findings if one.severity == "bad"] == ["every row has the label 'x'"]
    assert next(one.what for one in labelled(tmp_path, [("text", ""), ("other", "")])[1].findings if one.severity == "bad") == "every row has no label at all"


def test_labels_and_copies_across_the_two_splits(tmp_path: Path) -> None:
    draw = random.Random(0)
    train = [(made(draw, 30), "ab"[number % 2]) for number in range(20)]
    test = [*train[:2], (made(draw, 30), "a"), (made(draw, 30), "c")]
    found, report = labelled(tmp_path, train, test)
    assert found.counts == {"a": 10, "b": 10}
    assert found.other == {"a": 2, "b": 1, "c": 1}
    assert report.leak == Leak(4, 0.5, 0.5, 0.5)
    worst = [one.what for one in report.findings if one.severity == "bad"]
    assert "the other data set has labels that this one lacks: c" in worst
    assert "50.00% of the other data set's documents stand here word for word" in worst


def test_an_unbalanced_table(tmp_path: Path) -> None:
    draw = random.Random(0)
    report = labelled(tmp_path, [(made(draw, 12), "often") for _ in range(61)] + [(made(draw, 12), "rare") for _ in range(3)])[1]
    assert [(one.severity, one.what) for one in report.findings] == [("note", "the rarest label stands on 3 rows, the commonest on 61")]
    assert "rare" in report.findings[0].remedy
    assert labelled(tmp_path, [(made(draw, 12), "often") for _ in range(60)] + [(made(draw, 12), "rare") for _ in range(3)])[1].findings == ()


def test_labels_that_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one", "label": 0}\n{"text": "two", "label": 1}\n{"text": "six", "label": null}\n', encoding="utf-8")
    found = examine(sources([tmp_path / "a.jsonl"], column="text"), label="label").labels
    assert found is not None
    assert (found.counts, found.missing) == ({"0": 1, "1": 1}, 1)


# ---- the whole


def test_clean_data_has_nothing_bad(tmp_path: Path) -> None:
    found = looked(tmp_path, [*TOPICS, KOREAN, JAPANESE, GERMAN, FRENCH])
    assert not found.bad
    assert {one.severity for one in found.findings} <= {"note"}


def test_the_report_is_json(tmp_path: Path) -> None:
    table(tmp_path / "a.csv", [("text\ufffd", "x"), ("other", "y"), ("text\ufffd", "y")])
    found = examine(sources([tmp_path / "a.csv"]), sources([tmp_path / "a.csv"]), "label")
    told = json.loads(json.dumps(found.json()))
    assert told["profile"]["faults"] == {"replaced": 2}
    assert told["leak"] == {"documents": 3, "whole": 1, "runs": 1, "mostly": 1}
    assert told["labels"]["counts"] == {"x": 1, "y": 2}
    assert [one["severity"] for one in told["findings"]] == [one.severity for one in found.findings]


def test_nothing_to_look_at(tmp_path: Path) -> None:
    table(tmp_path / "a.csv", [("", "x"), (" ", "y")])
    with pytest.raises(UserError) as caught:
        examine(sources([tmp_path / "a.csv"]), label="label")
    assert str(caught.value) == f"no row of {tmp_path / 'a.csv'} holds a text; name the column of the texts with --column"
    (tmp_path / "b.txt").write_text("text", encoding="utf-8")
    with pytest.raises(UserError, match="is plain text and has no column 'label'"):
        examine(sources([tmp_path / "b.txt"]), label="label")
    with pytest.raises(UserError, match="did you mean label"):
        examine(sources([table(tmp_path / "c.csv", [("one", "x")])]), label="lable")
