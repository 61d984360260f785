"""From text to shards: the same bytes with any number of processes, killed anywhere, and nothing half-written taken for whole."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import corpora
from unmask.data import prepare as preparing
from unmask.data.corpus import sources
from unmask.data.prepare import BASE, EACH, Estimate, estimate, prepare
from unmask.data.shards import Corpus
from unmask.errors import UserError
from unmask.tokenizer import Tokenizer

TEXTS = corpora.documents(400)


@pytest.fixture(scope="module")
def tokenizer(minilm: Path) -> Tokenizer:
    return Tokenizer.load(minilm)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return corpora.write(tmp_path / "text.txt", TEXTS)


def digest(folder: Path) -> str:
    """Of all the bytes that shards are."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def test_the_same_bytes_with_any_number_of_processes(text: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    found = set()
    for processes in (1, 2, 3):
        out = tmp_path / f"with-{processes}"
        prepare(sources([text]), tokenizer, out, block=20_000, processes=processes)
        found.add(digest(out))
    assert len(found) == 1


def test_the_same_bytes_on_a_cluster(text: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    ray = pytest.importorskip("ray")
    prepare(sources([text]), tokenizer, tmp_path / "here", block=20_000, engine="here")
    try:
        prepare(sources([text]), tokenizer, tmp_path / "there", block=20_000, engine="ray", processes=2)
    finally:
        ray.shutdown()
    assert digest(tmp_path / "here") == digest(tmp_path / "there")


KILLED = """
import sys
from pathlib import Path
from unmask.data.corpus import sources
from unmask.data.prepare import prepare
from unmask.tokenizer import Tokenizer
if __name__ == "__main__":
    prepare(sources([sys.argv[1]]), Tokenizer.load(Path(sys.argv[2])), Path(sys.argv[3]), block=20_000, processes=int(sys.argv[4]))
    print("done")
"""


def test_killed_at_any_moment_it_finishes_to_the_same_bytes(text: Path, tmp_path: Path, minilm: Path, tokenizer: Tokenizer, full: bool) -> None:
    """SIGKILL to it and to all of its processes, at random moments, until it is through."""
    prepare(sources([text]), tokenizer, tmp_path / "whole", block=20_000, engine="here")
    (tmp_path / "killed.py").write_text(KILLED)
    draw = random.Random(0)
    kills = done = 0
    while kills < (50 if full else 5):
        out = tmp_path / f"killed-{done}"
        command = [sys.executable, str(tmp_path / "killed.py"), str(text), str(minilm), str(out), str(draw.choice([1, 2]))]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        until = time.monotonic() + draw.uniform(0.2, 2.5)
        while running.poll() is None and time.monotonic() < until:
            time.sleep(0.005)
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            kills += 1
            continue
        assert running.returncode == 0
        assert digest(out) == digest(tmp_path / "whole")
        done += 1
    out = tmp_path / f"killed-{done}"
    prepare(sources([text]), tokenizer, out, block=20_000, engine="here")
    assert digest(out) == digest(tmp_path / "whole")


def test_what_is_done_is_not_done_again(text: Path, tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    prepare(sources([text]), tokenizer, out, block=20_000, engine="here")
    before = digest(out)
    (out / "index.json").unlink()
    (out / "00001.safetensors").unlink()
    written = []
    real = preparing.write_shard
    monkeypatch.setattr(preparing, "write_shard", lambda path, *rest: (written.append(path.name), real(path, *rest)))
    prepare(sources([text]), tokenizer, out, block=20_000, engine="here")
    assert written == ["00001.safetensors"]
    assert digest(out) == before


def test_a_corpus_that_changed_is_noticed(text: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Every block is known by its text: what is there of another is made anew, and what is left over goes."""
    out = tmp_path / "out"
    prepare(sources([text]), tokenizer, out, block=20_000, engine="here")
    corpora.write(text, TEXTS[:150])
    prepare(sources([text]), tokenizer, out, block=20_000, engine="here")
    prepare(sources([text]), tokenizer, tmp_path / "fresh", block=20_000, engine="here")
    assert digest(out) == digest(tmp_path / "fresh")


def test_a_full_disk_leaves_nothing_half_written(text: Path, tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def full(number: int) -> None:
        calls.append(number)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")

    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr("unmask.data.shards.os.fsync", full)
        with pytest.raises(UserError, match=r"00002.safetensors could not be written .No space left on device.; free some space and run the same"):
            prepare(sources([text]), tokenizer, out, block=20_000, engine="here")
    assert sorted(path.name for path in out.glob("*.safetensors*")) == ["00000.safetensors", "00001.safetensors"]
    assert not list(out.glob(".*"))
    with pytest.raises(UserError, match="did not finish"):
        Corpus(out)
    prepare(sources([text]), tokenizer, out, block=20_000, engine="here")
    prepare(sources([text]), tokenizer, tmp_path / "fresh", block=20_000, engine="here")
    assert digest(out) == digest(tmp_path / "fresh")


def test_another_command_s_folder_is_left_alone(text: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    out = tmp_path / "out"
    prepare(sources([text]), tokenizer, out, block=20_000, engine="here")
    before = digest(out)
    with pytest.raises(UserError, match=r"out holds shards made with another validation; give --out another folder"):
        prepare(sources([text]), tokenizer, out, block=20_000, validation=0.2, engine="here")
    other = Tokenizer.from_vocabulary({piece: i for i, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])})
    with pytest.raises(UserError, match="made with another tokenizer and vocabulary"):
        prepare(sources([text]), other, out, block=20_000, engine="here")
    assert digest(out) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="is there and holds no shards"):
        prepare(sources([text]), tokenizer, tmp_path / "mine", engine="here")


def test_no_text_at_all(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "blank.txt").write_text("\x00" * 0 + "\n\n  \n")
    with pytest.raises(UserError):
        prepare(sources([tmp_path / "blank.txt"]), tokenizer, tmp_path / "out", engine="here")
    assert not (tmp_path / "out" / "index.json").exists()


def test_validation_is_the_same_however_blocks_fall(text: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    kept = []
    for block in (20_000, 90_000):
        out = tmp_path / str(block)
        prepare(sources([text]), tokenizer, out, block=block, validation=0.2, engine="here")
        corpus = Corpus(out, "validation")
        documents = corpus.fetch(np.arange(len(corpus)))
        kept.append(documents.tokens.tolist())
    assert kept[0] == kept[1]
    assert 0.1 < len(corpus) / len(TEXTS) < 0.3


def test_an_estimate_before_anything_is_written(text: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    guess = estimate(sources([text]), tokenizer, tmp_path / "out" / "deep")
    assert guess is not None
    assert not (tmp_path / "out").exists()
    index = prepare(sources([text]), tokenizer, tmp_path / "out", block=20_000, engine="here")
    size = sum(path.stat().st_size for path in (tmp_path / "out").glob("*.safetensors"))
    assert guess.tokens == pytest.approx(sum(index["tokens"]), rel=0.05)
    assert guess.bytes == pytest.approx(size, rel=0.15)
    assert guess.free == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
    assert str(guess).startswith(f"about {guess.tokens:,} tokens in 0.")


def test_memory_decides_how_many_work(text: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    assert preparing._count(8, None) == 8
    assert preparing._count(8, BASE + 3 * EACH) == 3
    assert preparing._count(2, BASE + 3 * EACH) == 2
    with pytest.raises(UserError, match="300 MB are too little to work in; give 550MB or more"):
        prepare(sources([text]), tokenizer, tmp_path / "out", memory=300_000_000)


def test_what_does_not_fit_on_the_disk_is_said_before(tmp_path: Path) -> None:
    Estimate(10, 20, 20).check(tmp_path)
    with pytest.raises(UserError, match=r"out needs about 21 MB and 20 MB are free there; free some space"):
        Estimate(10, 21_000_000, 20_000_000).check(tmp_path / "out")


def test_a_mistake_in_the_settings_writes_nothing(text: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    for settings in ({"engine": "rya"}, {"processes": -1}, {"memory": 10**8}, {"validation": 2.0}):
        with pytest.raises(UserError):
            prepare(sources([text]), tokenizer, tmp_path / "out", **settings)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("harm", ["flip", "cut", "header"])
def test_a_damaged_shard_is_made_anew(harm: str, text: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """To run the same command again is the remedy, so it must be one."""
    out = tmp_path / "out"
    prepare(sources([text]), tokenizer, out, block=20_000, engine="here")
    before = digest(out)
    path = out / "00001.safetensors"
    data = bytearray(path.read_bytes())
    data[{"flip": -7, "cut": -1, "header": 12}[harm]] ^= 1
    path.write_bytes(data if harm != "cut" else data[: len(data) // 2])
    with pytest.raises(UserError):
        Corpus(out).verify()
    prepare(sources([text]), tokenizer, out, block=20_000, engine="here")
    Corpus(out).verify()
    assert digest(out) == before


@pytest.mark.parametrize("left", [[], [".settings.json.new"], ["settings.json"], ["settings.json", "tokenizer/.vocab.txt.new"]])
def test_killed_at_its_start_it_goes_on(left: list[str], text: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    prepare(sources([text]), tokenizer, tmp_path / "whole", block=20_000, engine="here")
    out = tmp_path / "out"
    out.mkdir()
    (out / "tokenizer").mkdir()
    (out / "tokenizer").rmdir() if not left else None
    for name in left:
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_bytes((tmp_path / "whole" / "settings.json").read_bytes() if name == "settings.json" else b"half")
    if left == [".settings.json.new"]:
        (out / "tokenizer").rmdir()
    prepare(sources([text]), tokenizer, out, block=20_000, engine="here")
    assert (out / "index.json").read_bytes() == (tmp_path / "whole" / "index.json").read_bytes()


def test_while_it_works_the_folder_is_not_finished(text: Path, tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where an earlier text's shards were whole: their index would speak of files that are being replaced."""
    out = tmp_path / "out"
    prepare(sources([text]), tokenizer, out, block=20_000, engine="here")
    corpora.write(text, TEXTS[50:])
    seen = []
    monkeypatch.setattr(preparing, "write_index", lambda *given: seen.append((out / "index.json").exists()))
    with pytest.raises(UserError):
        prepare(sources([text]), tokenizer, out, block=20_000, engine="here")
    assert seen == [False]


def test_one_process_makes_shards_by_several_tokenizers(text: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    other = Tokenizer.from_vocabulary({piece: i for i, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])})
    for one in (tokenizer, other):
        index = prepare(sources([text]), one, tmp_path / "out", block=20_000, engine="here")
        tokens = Corpus(tmp_path / "out").fetch(np.arange(50)).tokens
        assert int(tokens.max()) < index["vocabulary"]
        assert (int(tokens.max()) > 5) is (one is tokenizer)
        shutil.rmtree(tmp_path / "out")


def test_numbers_beyond_a_gap_fit(text: Path, tmp_path: Path) -> None:
    """A vocabulary with lines named twice has fewer entries than its last number."""
    lines = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *["again"] * 80, *(f"x{number}" for number in range(65_500)), "zebra"]
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok" / "vocab.txt").write_text("\n".join(lines) + "\n")
    tokenizer = Tokenizer.load(tmp_path / "tok")
    text.write_text("zebra zebra\n\nzebra\n" * 5)
    prepare(sources([text]), tokenizer, tmp_path / "out", engine="here", validation=0.0)
    assert set(Corpus(tmp_path / "out").fetch(np.arange(3)).tokens.tolist()) == {len(lines) - 1}


def test_an_estimate_of_text_with_faults(text: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    text.write_bytes(b"fine \xff text here.\n\nand more.\n" * 50)
    assert estimate(sources([text], encoding="utf-8:replace"), tokenizer, tmp_path / "out") is not None


def test_a_name_that_is_no_utf8(text: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xc7\xd1\xb1\xdb.txt"))
    odd.write_bytes(text.read_bytes())
    prepare(sources([odd]), tokenizer, tmp_path / "out", block=20_000, engine="here")
    assert len(Corpus(tmp_path / "out"))


def test_workers_leave_with_a_parent_that_was_killed(text: Path, tmp_path: Path, minilm: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED.replace("block=20_000", "block=2_000"))
    corpora.write(text, TEXTS * 20)
    command = [sys.executable, str(tmp_path / "killed.py"), str(text), str(minilm), str(tmp_path / "out"), "2"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while not list(tmp_path.glob("out/0*.safetensors")):
        assert running.poll() is None
        time.sleep(0.02)
    running.kill()
    running.wait()
    until = time.monotonic() + 20
    while members(running.pid) and time.monotonic() < until:
        time.sleep(0.2)
    assert not members(running.pid)


def members(session: int) -> list[str]:
    """The processes of a session that are still alive."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(path.parent.name)
    return found
