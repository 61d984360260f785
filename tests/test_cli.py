"""The command line: answers on standard output, and for every mistake one line on standard error and exit code 2."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

import unmask
from models import THREE, Case, make
from unmask import cli
from unmask.infer import report


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders by what they do."""
    place = tmp_path_factory.mktemp("homes")
    cases = {
        "words": Case("bert", "BertForMaskedLM", ("words",)),
        "classes": Case("bert", "BertForSequenceClassification", ("classify",), THREE),
        "tags": Case("bert", "BertForTokenClassification", ("tag",), THREE),
        "spans": Case("bert", "BertForQuestionAnswering", ("spans",)),
        "next": Case("bert", "BertForNextSentencePrediction", ("next",)),
        "bare": Case("bert", "BertModel", ()),
        "pictures": Case("vit", "ViTForImageClassification", ("classify",), THREE),
    }
    for name, case in cases.items():
        make(case, place / name)
    return {name: str(place / name) for name in cases}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    (tmp_path / "album").mkdir()
    for name in ("a.png", "b.jpg"):
        Pillow.fromarray(draw.integers(0, 256, (40, 30, 3)).astype(np.uint8)).save(tmp_path / "album" / name)
    return tmp_path / "album"


BUFFERED = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}  # as a user has it


class Ran:
    def __init__(self, capsys: pytest.CaptureFixture[str], *words: Any) -> None:
        with pytest.raises(SystemExit) as ended:
            cli.main([str(word) for word in words])
        self.code = ended.value.code
        self.out, self.err = capsys.readouterr()

    @property
    def rows(self) -> list[Any]:
        assert self.code == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def answers(self) -> list[Any]:
        return [row["answer"] for row in self.rows]

    @property
    def mistake(self) -> str:
        assert (self.code, self.out) == (2, "")
        assert self.err.startswith("unmask: ")
        assert self.err.count("\n") == 1
        return self.err


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda *words: Ran(capsys, *words)


# ---- answers


def test_predict_says_what_the_library_says(ran: Any, homes: dict[str, str]) -> None:
    for home, given in (("words", "a [MASK] c"), ("classes", "a b"), ("tags", "ab cd"), ("spans", ("a b", "a b c d")), ("next", ("a b", "c d"))):
        model = unmask.load(homes[home])
        answer = model.ask(model.task, given)
        expected = [one.json() for one in answer] if isinstance(answer, list) else answer.json()
        found = ran("predict", homes[home], given if isinstance(given, str) else "\t".join(given))
        assert found.rows == json.loads(json.dumps([{"input": given, "answer": expected}]))
        assert found.err == ""


def test_options_may_stand_anywhere(ran: Any, homes: dict[str, str]) -> None:
    expected = ran("predict", homes["words"], "[MASK] a", "b [MASK]", "--top", "2").answers
    assert [len(mask) for answer in expected for mask in answer["masks"]] == [2, 2]
    assert ran("predict", "--top", "2", homes["words"], "[MASK] a", "b [MASK]").answers == expected
    assert ran("predict", homes["words"], "[MASK] a", "--top=2", "b [MASK]").answers == expected
    assert ran("predict", homes["words"], "--task", "fill", "[MASK] a", "--top", "2", "--", "b [MASK]").answers == expected
    assert ran("predict", homes["classes"], "--", "--top").rows[0]["input"] == "--top"


def test_a_file_of_texts_and_of_objects(ran: Any, homes: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("a b\nc d\n")
    (tmp_path / "x.jsonl").write_text('{"text": "a b"}\n"c d"\n')
    expected = ran("predict", homes["classes"], "a b", "c d").rows
    assert ran("predict", homes["classes"], tmp_path / "x.txt").rows == expected
    assert ran("predict", homes["classes"], tmp_path / "x.jsonl").rows == expected


def test_a_context_for_every_question(ran: Any, homes: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "context.txt").write_text("a b c d e f g")
    expected = ran("predict", homes["spans"], "a b\ta b c d e f g", "c d\ta b c d e f g").answers
    assert ran("predict", homes["spans"], "a b", "c d", "--pair", "a b c d e f g").answers == expected
    assert ran("predict", homes["spans"], "a b", "c d", "--pair", tmp_path / "context.txt").answers == expected


def test_a_folder_of_pictures(ran: Any, homes: dict[str, str], pictures: Path) -> None:
    rows = ran("predict", homes["pictures"], pictures).rows
    assert [row["input"] for row in rows] == [str(pictures / "a.png"), str(pictures / "b.jpg")]
    assert rows == ran("predict", homes["pictures"], pictures / "a.png", pictures / "b.jpg").rows
    assert {row["answer"]["label"] for row in rows} <= {"bad", "fair", "good"}


def test_embed_to_a_file_and_to_lines_alike(ran: Any, homes: dict[str, str], tmp_path: Path) -> None:
    texts, out = ["a b c", "", "d [b]e[/b]", "고양이"], tmp_path / "vectors.npy"
    lines = ran("embed", homes["bare"], *texts, "--precision", "float32")
    written = ran("embed", homes["bare"], *texts, "--precision", "float32", "--out", out)
    assert written.out == ""
    assert "4 vectors of 48" in written.err
    vectors = np.load(out)
    assert vectors.dtype == np.float32
    assert np.array_equal(vectors, np.array(lines.rows, np.float32)), "a float32 in text is that float32 again"
    assert np.array_equal(vectors, unmask.load(homes["bare"]).embed(texts))
    assert list(tmp_path.iterdir()) == [out]


def test_embed_pictures(ran: Any, homes: dict[str, str], pictures: Path) -> None:
    assert np.array(ran("embed", homes["pictures"], pictures).rows).shape == (2, 48)


def test_a_table_on_a_terminal(ran: Any, homes: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    found = ran("predict", homes["words"], "[MASK] a [/b] [red]c")
    assert "│" in found.out
    assert "[MASK] a [/b] [red]c" in found.out, "what is given is shown, not read as rich's markup"
    assert ran("predict", homes["words"], "[MASK] a", "--json").rows
    assert "│" in ran("show", homes["classes"]).out
    assert "│" in ran("show", "families").out


def test_a_real_terminal(homes: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    ended = subprocess.Popen([sys.executable, "-m", "unmask", "predict", homes["classes"], "a b"], stdout=theirs, stdin=theirs, stderr=subprocess.PIPE)
    _, err = ended.communicate(timeout=60)
    os.close(theirs)
    shown = os.read(ours, 100_000).decode()
    os.close(ours)
    assert (ended.returncode, err) == (0, b"")
    assert "│" in shown


# ---- show


def test_show_a_folder(ran: Any, homes: dict[str, str]) -> None:
    (found,) = ran("show", homes["classes"], "--json").rows
    assert found["family"] == "bert"
    assert found["shape"].startswith("3 layers, width 48, 4 heads")
    assert found["heads"] == {"classify": 3}
    assert found["labels"] == ["bad", "fair", "good"]
    assert found["parameters"] == sum(p.numel() for p in unmask.load(homes["classes"]).model.parameters())


def test_show_tasks_and_families(ran: Any) -> None:
    assert {"fill", "next", "classify", "tagging", "spans", "embed"} <= {row["task"] for row in ran("show", "tasks").rows}
    shapes = {row["shape"]: row for row in ran("show", "families").rows}
    assert round(shapes["bert.base"]["parameters"] / 1e6) == 109
    assert round(shapes["vit.base"]["parameters"] / 1e6) == 86
    assert shapes["resnet.18"]["made of"] == "stages of 2, 2, 2, 2 basic blocks, 64, 128, 256, 512 channels wide"
    assert shapes["albert.base"]["made of"].startswith("12 layers (1 with weights of their own), width 768")


@pytest.mark.parametrize(
    "words", [["--help"], ["demo", "--help"], ["predict", "--help"], ["embed", "-h"], ["show", "-h"], ["study", "-h"], ["study", "pairs", "-h"], ["--version"]]
)
def test_help(ran: Any, words: list[str]) -> None:
    found = ran(*words)
    assert (found.code, found.err) == (0, "")
    assert "unmask" in found.out


# ---- mistakes


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "COMMAND"),
        (["pedict", "x"], "'pedict' is not known, did you mean predict?"),
        (["frobnicate"], "known: demo, doctor, embed, evaluate, plan, predict, prepare, prove, show"),
        (["predict"], "model"),
        (["predict", "M", "--toop", "3", "x"], "there is no option --toop, did you mean --top?"),
        (["predict", "M", "x", "--prompt", "q"], "--prompt"),
        (["embed", "M", "x", "--ouut=y"], "there is no option --ouut, did you mean --out?"),
        (["predict", "M", "x", "--top", "none"], "'none' is no number above 0"),
        (["predict", "M", "x", "--top", "0"], "'0' is no number above 0"),
        (["predict", "M", "x", "--top", "-3"], "-3"),
        (["predict", "M", "x", "--top"], "--top"),
        (["predict", "M", "x", "--precision", "bf17"], "'bf17' is not known, did you mean bf16?"),
        (["show"], "thing"),
        (["study"], "NAME"),
        (["study", "pears", "M"], "'pears' is not known, did you mean pairs?"),
        (["study", "--json", "pairs", "M", "P"], "NAME"),
        (["study", "pairs", "M", "P", "--jsn"], "there is no option --jsn, did you mean --json?; see unmask study pairs --help"),
        (["show", "M", "y"], "'y' is one word too many"),
        (["--frob"], "--help"),
    ],
)
def test_words_that_are_no_command(ran: Any, words: list[str], says: str) -> None:
    assert says in ran(*words).mistake


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["predict", "./none", "x"], "there is no folder ./none"),
        (["show", "./none"], "there is no folder ./none"),
        (["embed", "{place}", "x"], "config.json"),
        (["predict", "{bare}", "x"], "use embed"),
        (["predict", "{bare}", "x", "--task", "fill"], "no head 'words'"),
        (["predict", "{words}", "x", "--task", "fil"], "'fil', did you mean fill?"),
        (["predict", "{words}", "x", "--task", "embed"], "use unmask embed"),
        (["predict", "{words}", "no mask here"], "[MASK]"),
        (["predict", "{spans}", "a question without a context"], "a pair of texts"),
        (["predict", "{tags}", "a\tb"], "a text"),
        (["predict", "{classes}", "{place}/none.txt"], "there is no file"),
        (["predict", "{classes}", "{place}/empty.txt"], "is empty"),
        (["predict", "{classes}", "{place}/latin.txt"], "not UTF-8"),
        (["predict", "{classes}", "{place}/bad.jsonl"], "line 1 of"),
        (["predict", "{classes}", "{place}"], "holds no pictures"),
        (["predict", "{classes}", "a\tb", "--pair", "c"], "leave --pair out"),
        (["predict", "{pictures}", "a text, no picture"], "there is no picture a text, no picture"),
        (["predict", "{pictures}", "{place}/none.png"], "there is no file"),
        (["predict", "{classes}", "{album}"], "1 is"),
        (["embed", "{bare}", "{album}"], "1 is"),
        (["embed", "{bare}", "x", "--prompt", "query"], "no prompt 'query'"),
        (["embed", "{bare}", "x", "--out", "{place}/x.txt"], "ends in .npy"),
        (["embed", "{bare}", "x", "--out", "{place}/none/x.npy"], "there is no folder"),
        (["embed", "{bare}", "x", "--out", "{place}/taken.npy"], "could not be written"),
        (["embed", "{pictures}", "{place}/text.jpg"], "is not a picture"),
    ],
)
def test_mistakes(ran: Any, homes: dict[str, str], pictures: Path, tmp_path: Path, words: list[str], says: str) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "empty.txt").write_bytes(b"")
    (place / "latin.txt").write_bytes(b"caf\xe9")
    (place / "bad.jsonl").write_text('{\n"good"')
    if words[1] == "{pictures}":
        (place / "text.jpg").write_text("a text")
    (place / "taken.npy").mkdir()
    before = sorted(place.iterdir())
    assert says in ran(*(word.format(place=place, album=pictures, **homes) for word in words)).mistake
    assert sorted(place.iterdir()) == before, "nothing is left behind"


@pytest.mark.parametrize(
    "words",
    [["predict", "{pictures}", "a\tb"], ["embed", "{bare}", "x", "--device", "tpu"], ["embed", "{bare}", "x", "--device", "cuda:99"]],
    ids=["a pair for a picture model", "no such device", "no such GPU"],
)
def test_mistakes_of_the_predictor(ran: Any, homes: dict[str, str], words: list[str]) -> None:
    assert ran(*(word.format(**homes) for word in words)).mistake


@pytest.mark.filterwarnings("default")
def test_warnings_are_lines_too(ran: Any, homes: dict[str, str]) -> None:
    found = ran("embed", homes["bare"], "half \ud83d")
    assert len(found.rows) == 1
    assert found.err.startswith("unmask: 1 of 1 texts hold lone surrogates")


# ---- files half written, pipes half read


def test_nothing_is_left_where_embed_fails_midway(ran: Any, homes: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "x.npy"
    out.write_bytes(b"the old one")
    (tmp_path / "texts.jsonl").write_text('"good"\n' * 2_100 + "{")
    assert "line 2101" in ran("embed", homes["bare"], tmp_path / "texts.jsonl", "--out", out).mistake
    assert out.read_bytes() == b"the old one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.jsonl", "x.npy"]


def test_a_full_disk_is_a_sentence(ran: Any, homes: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report, "_header", full)
    assert "No space left on device" in ran("embed", homes["bare"], "x", "--out", tmp_path / "x.npy").mistake
    assert not list(tmp_path.iterdir())
    with Path("/dev/full").open("w") as device:
        ended = subprocess.run([sys.executable, "-m", "unmask", "show", "tasks"], stdout=device, stderr=subprocess.PIPE, timeout=60, check=False, env=BUFFERED)
    assert ended.stderr == b"unmask: standard output: No space left on device\n"
    assert ended.returncode == 2


def test_who_has_done_is_ended_without_a_trace() -> None:
    """torchrun asks a rank to end that is just ending, and Python would print what it was clearing away."""
    with pytest.raises(SystemExit):
        cli.main(["show", "recipes"])
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("blow", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_where_embed_is_stopped(homes: dict[str, str], tmp_path: Path, blow: signal.Signals) -> None:
    out = tmp_path / "x.npy"
    running = subprocess.Popen(
        [sys.executable, "-m", "unmask", "embed", homes["bare"], "--out", str(out)], stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    )
    until = time.monotonic() + 30
    while not list(tmp_path.iterdir()) and time.monotonic() < until:
        time.sleep(0.05)
    assert [path.suffix for path in tmp_path.iterdir()] == [".npy"], "it is writing beside"
    time.sleep(0.1)
    running.send_signal(blow)
    _, err = running.communicate(timeout=30)
    assert running.returncode in (130, 143)
    assert b"Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_head_closes_the_pipe_early(homes: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a b\n" * 3_000)
    line = f"{sys.executable} -m unmask embed {homes['bare']} texts.txt | head -n 1"
    ended = subprocess.run(["bash", "-o", "pipefail", "-c", line], cwd=tmp_path, capture_output=True, timeout=60, check=False, env=BUFFERED)
    assert len(json.loads(ended.stdout)) == 48
    assert ended.stderr == b""
    assert ended.returncode == 0


def test_a_pipe_that_nobody_reads() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    ended = subprocess.run([sys.executable, "-m", "unmask", "show", "tasks"], stdout=theirs, stderr=subprocess.PIPE, timeout=60, check=False, env=BUFFERED)
    os.close(theirs)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_bytes_and_locales(homes: dict[str, str], tmp_path: Path) -> None:
    """A text that is no UTF-8 on the command line, and a terminal that has no letter for what comes."""
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(
        [sys.executable.encode(), b"-m", b"unmask", b"predict", homes["classes"].encode(), b"caf\xe9", "고양이".encode()],
        capture_output=True,
        timeout=60,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert [json.loads(line)["input"] for line in ended.stdout.splitlines()] == ["caf\udce9", "고양이"]
    assert b"surrogates" in ended.stderr


def test_answers_before_a_mistake_are_kept(ran: Any, homes: dict[str, str], tmp_path: Path) -> None:
    """They were right, and a person who mends line 2 may go on from there."""
    (tmp_path / "half.jsonl").write_text('"good"\n{')
    found = ran("predict", homes["classes"], str(tmp_path / "half.jsonl"))
    assert found.code == 2
    assert [row["input"] for row in map(json.loads, found.out.splitlines())] == ["good"]
    assert found.err.startswith("unmask: line 2 of ")


def test_a_tab_in_a_text_to_embed_is_a_tab(ran: Any, homes: dict[str, str], tmp_path: Path) -> None:
    """Only what takes pairs reads one: a .tsv of a million rows is not to fail at the first row that has a second column."""
    (tmp_path / "rows.tsv").write_text("a b\tc\nd\n")
    found = ran("embed", homes["bare"], str(tmp_path / "rows.tsv"), "--precision", "float32")
    assert len(found.rows) == 2
    assert found.rows[0] == ran("embed", homes["bare"], "a b c", "--precision", "float32").rows[0]
