"""From files of text to batches by the commands as they are typed, and what each says of a mistake."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import corpora
import unmask
from models import THREE, Case, make
from unmask import cli
from unmask.data.shards import Corpus
from unmask.tokenizer import Tokenizer

TEXTS = corpora.documents(150)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a text in it."""
    corpora.write(tmp_path / "text.txt", TEXTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Callable[[str], tuple[int, str, str]]:
    def run(line: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(line.split())
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.fixture
def mistake(typed: Callable[[str], tuple[int, str, str]]) -> Callable[[str], str]:
    def run(line: str) -> str:
        code, out, err = typed(line)
        assert (code, out) == (2, "")
        assert "Traceback" not in err
        assert err.splitlines()[-1].startswith("unmask: ")
        return err.splitlines()[-1].removeprefix("unmask: ")

    return run


def test_the_way_from_text_to_batches(home: Path, typed: Any) -> None:
    code, out, err = typed("tokenizer text.txt --vocab-size 2000 --out tok")
    assert code == 0
    assert "text.txt: text (0.2 MB), read as UTF-8, documents separated by blank lines (--layout chooses another)" in err
    assert "pieces a word" in out
    assert {path.name for path in (home / "tok").iterdir()} >= {"vocab.txt", "tokenizer.json", "report.json"}
    assert Tokenizer.load(home / "tok").size == 2000
    assert json.loads((home / "tok" / "report.json").read_text())["made"]["size"] == 2000

    code, out, err = typed("prepare text.txt --tokenizer tok --out shards --validation 0.1")
    assert code == 0
    assert " tokens in 0.1 MB; " in err, "it says the size before it writes"
    corpus = Corpus(home / "shards")
    assert f"{len(corpus) + len(Corpus(home / 'shards', 'validation')):,} documents" in out

    code, out, _ = typed("show shards --statistics")
    found = json.loads(out)
    assert found["vocabulary"] == 2000
    assert found["statistics"]["pieces chosen"] == pytest.approx(0.15, abs=0.01)
    assert found["statistics"]["pairs that follow"] == pytest.approx(0.5, abs=0.1)
    assert "statistics" not in json.loads(typed("show shards")[1])


def test_a_size_before_anything_is_written(home: Path, typed: Any, minilm: Path) -> None:
    code, out, err = typed(f"prepare text.txt --tokenizer {minilm} --out shards --dry-run")
    assert (code, out) == (0, "")
    assert re.search(r"shards: about 3\d,\d{3} tokens in 0.1 MB; [\d,]+ MB are free there", err)
    assert not (home / "shards").exists()


def test_the_doctor_on_a_terminal_and_for_machines(home: Path, typed: Any) -> None:
    code, out, _ = typed("doctor text.txt --html page.html")
    assert code == 0
    assert "can form sentence pairs" in out
    assert (home / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    code, out, _ = typed("doctor text.txt --json")
    assert json.loads(out)["profile"]["documents"] == len(TEXTS)


def test_the_doctor_is_strict_if_asked(home: Path, typed: Any) -> None:
    assert typed("doctor text.txt --strict")[0] == 0
    corpora.write(home / "twice.txt", [*TEXTS, *TEXTS])
    assert typed("doctor twice.txt")[0] == 0
    assert typed("doctor twice.txt --strict")[0] == 1


def test_the_doctor_finds_what_leaks_and_what_labels_say(home: Path, typed: Any) -> None:
    rows = "".join(f"{text.split(chr(10))[0]},{'good' if number % 2 else 'bad'}\n" for number, text in enumerate(TEXTS))
    (home / "train.csv").write_text("text,label\n" + rows)
    (home / "test.csv").write_text("text,label\n" + "\n".join(rows.splitlines()[:20]) + "\n")
    found = json.loads(typed("doctor train.csv --label label --against test.csv --json")[1])
    assert found["leak"]["whole"] == 1.0
    assert found["labels"]["counts"] == {"good": 75, "bad": 75}


def test_the_doctor_goes_on_over_bytes_that_are_no_letters(home: Path, typed: Any) -> None:
    """To find them is its work; everything else stops at the first."""
    (home / "broken.txt").write_bytes("가나다라 마바사.\n\n".encode() * 400 + b"\xff\xfe\xff bad\n\n" + "아자차카 타파하.\n".encode())
    found = json.loads(typed("doctor broken.txt --json")[1])
    assert found["profile"]["faults"]["bytes"] == 1
    assert "not of the file's encoding" in json.dumps(found["findings"])


def test_words_of_a_field_for_a_model_that_is_there(home: Path, typed: Any, minilm: Path) -> None:
    corpora.write(home / "field.txt", ["zymurgical fermentors overpitch the wort. 막걸리 양조장에서."] * 3)
    code, out, _ = typed(f"tokenizer field.txt --extend {minilm} --words 5 --out brewer")
    assert code == 0
    assert out.startswith("5 words were added, such as")
    model = unmask.load("brewer")
    assert model.tokenizer is not None
    assert model.tokenizer.size == 30_527
    assert model.tokenizer.encode(["zymurgical"], offsets=True)[0].tokens[1:-1] == ["zymurgical"]


def test_the_same_from_a_pipe_and_from_packed_files(home: Path) -> None:
    (home / "text.txt.gz").write_bytes(gzip.compress((home / "text.txt").read_bytes()))
    command = [sys.executable, "-m", "unmask", "tokenizer", "--vocab-size", "500", "--layout", "blank", "--out"]
    for name, given in (("plain", "text.txt"), ("packed", "text.txt.gz"), ("piped", "-")):
        with (home / "text.txt").open("rb") as piped:
            subprocess.run([*command, name, given], stdin=piped, check=True, capture_output=True)
    assert len({(home / name / "vocab.txt").read_bytes() for name in ("plain", "packed", "piped")}) == 1


def test_the_same_vocabulary_whatever_the_order_of_the_files(home: Path, typed: Any) -> None:
    for number in range(4):
        corpora.write(home / f"{number}.txt", TEXTS[number::4])
    typed("tokenizer 0.txt 1.txt 2.txt 3.txt --vocab-size 900 --out one")
    typed("tokenizer 3.txt 1.txt 0.txt 2.txt --vocab-size 900 --out two")
    assert (home / "one" / "vocab.txt").read_bytes() == (home / "two" / "vocab.txt").read_bytes()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tokenizer nope.txt --out tok", "there is no file or folder nope.txt"),
        ("tokenizer empty.txt --out tok", "empty.txt is empty; give files that hold text"),
        ("tokenizer blank.txt --out tok", "there is no text in blank.txt; give files that hold some"),
        ("doctor blank.txt", "there is no text in blank.txt; give files that hold some"),
        ("prepare blank.txt --tokenizer MINILM --out shards", "there is no text in blank.txt; give files that hold some"),
        ("tokenizer picture.txt --out tok", "picture.txt is a PNG picture, not text; leave it out, or give a pattern such as *.txt"),
        ("tokenizer text.txt --vocab-size 20 --out tok", "a vocabulary of 20 has no room for the special pieces and an alphabet of"),
        ("tokenizer text.txt --vocab-size 900000 --out tok", "the text has only"),
        ("tokenizer text.txt --memory 5MB --out tok", "a memory of 5MB is too little to count words in; give 100MB or more"),
        ("tokenizer text.txt --by frequncy --out tok", "pieces cannot be chosen by 'frequncy', did you mean frequency?"),
        ("tokenizer text.txt --layout lines --out tok", "--layout lines is not known, did you mean line?"),
        ("tokenizer text.txt --extend PICTURES --out tok", "has no vocabulary to add words to"),
        ("tokenizer text.txt", "the following arguments are required: --out; see unmask tokenizer --help"),
        ("prepare text.txt --tokenizer nope --out shards", "there is no folder nope"),
        ("prepare text.txt --tokenizer MINILM --out shards --engine rya", "there is no engine 'rya', did you mean ray?"),
        ("prepare text.txt --tokenizer MINILM --out shards --validation 1.5", "a validation share of 1.5 is none"),
        ("prepare text.txt --tokenizer MINILM --out shards --memory 200MB", "200 MB are too little to work in; give 550MB or more"),
        ("prepare text.txt --tokenizer MINILM --out mine", "mine is there and holds no shards; give --out another folder"),
        ("doctor text.txt --label stars", "text.txt is plain text and has no column 'stars'"),
        ("doctor text.txt --html nowhere/page.html", "there is no folder nowhere to write page.html into; make it first"),
        ("doctor cut.txt.gz", "cut.txt.gz breaks off in the middle of its .gz data; copy it again from where it came"),
        ("show mine", "mine holds no config.json"),
    ],
)
def test_bad_input(line: str, said: str, home: Path, mistake: Callable[[str], str], minilm: Path) -> None:
    (home / "empty.txt").touch()
    (home / "blank.txt").write_text("\n \n\n")
    (home / "picture.txt").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (home / "cut.txt.gz").write_bytes(gzip.compress(os.urandom(10_000).hex().encode())[:5_000])
    (home / "mine").mkdir()
    (home / "mine" / "thesis.tex").write_text("x")
    if "PICTURES" in line:
        make(Case("vit", "ViTForImageClassification", ("classify",), THREE), home / "PICTURES")
    before = set(home.rglob("*"))
    assert said in mistake(line.replace("MINILM", str(minilm)))
    assert set(home.rglob("*")) - before <= {home / "shards", *(home / "shards").rglob("*")}


def test_mixed_encodings_are_read_each_in_its_own_and_said(home: Path, typed: Any) -> None:
    folder = home / "mixed"
    folder.mkdir()
    (folder / "a.txt").write_text("한국어 문장은 이렇게 쓴다. 그리고 또 하나의 문장을 여기에 쓴다.\n" * 30, encoding="cp949")
    (folder / "b.txt").write_text("한국어 문장은 저렇게 쓴다. 그리고 다른 하나의 문장을 여기에 쓴다.\n" * 30, encoding="utf-8")
    code, _, err = typed("tokenizer mixed --vocab-size 70 --out tok")
    assert code == 0
    assert "encodings are mixed (CP949 (EUC-KR is part of it), UTF-8): each file is read in its own" in err
    assert {"한", "쓴"} <= set((home / "tok" / "vocab.txt").read_text(encoding="utf-8").split("\n"))
