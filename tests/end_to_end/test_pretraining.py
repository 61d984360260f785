"""Pretraining by the commands as they are typed, and what each says of a mistake."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import runs
import unmask
from unmask import cli
from unmask.data.shards import kept_back
from unmask.train import log, loop
from unmask.train.prepared import Prepared

SMALL = (
    "--model.encoder.depth 1 --model.encoder.width 32 --model.encoder.heads 2 --model.encoder.hidden 32 --model.embed.positions 64 "
    "--data.tokens 256 --data.step [[0,2]] --data.longest [[0,32]] --layout packed --model.embed.dropout 0 --model.encoder.dropout 0 "
    "--model.encoder.attention_dropout 0 --evaluate_tokens 500"
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.made(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(line.split())
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def test_train_and_resume(typed: Any, shards: Path, tmp_path: Path) -> None:
    code, out, err = typed(f"train bert.tiny --data {shards} --out mine --steps 6 {SMALL} --optimizer.lr=3e-3")
    assert code == 0, err
    assert out.startswith("mine: 6 steps, valid.loss ")
    assert "step 5" in err
    assert "tokens/s" in err
    assert unmask.load(tmp_path / "mine").fill("the [MASK]").masks
    assert json.loads((tmp_path / "mine" / "recipe.json").read_text())["optimizer"]["lr"] == 3e-3
    code, out, _ = typed("train mine")
    assert (code, out.split(",")[0]) == (0, "mine: 6 steps")
    assert len([row for row in log.rows(tmp_path / "mine") if "loss" in row]) == 6, "nothing was made again"
    found = json.loads(typed("show mine")[1])
    assert found["family"] == "bert"
    assert found["heads"] == {"words": 400, "next": 2}
    assert found["provenance"]["metrics"]["valid.loss"] > 0


def test_plan(typed: Any, shards: Path, tmp_path: Path) -> None:
    code, out, _ = typed(f"plan bert.tiny --data {shards} --steps 1000 --seconds 0.2 {SMALL}")
    assert code == 0
    assert "tokens/s" in out
    assert "1,000 steps" in out
    found = json.loads(typed(f"plan bert.tiny --data {shards} --steps 1000 --seconds 0.2 --json {SMALL}")[1])
    assert found["steps"] == pytest.approx(1000)
    assert found["seconds"] == pytest.approx(found["tokens"] / found["speed"])
    assert list(tmp_path.iterdir()) == [], "it writes nothing"


@pytest.mark.parametrize("verb", ["train", "plan"])
def test_a_batch_that_does_not_fit(verb: str, typed: Any, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that holds 128 tokens at once: what is said of it is one sentence, and who does what it says is done."""
    real = loop.backward

    def backward(ready: Prepared, step: Any) -> Any:
        if ready.run.data.tokens > 128:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(ready, step)

    monkeypatch.setattr(loop, "backward", backward)
    line = f"{verb} bert.tiny --data {shards} {'--out mine' if verb == 'train' else '--seconds 0'} --steps 3 {SMALL}"
    code, out, err = typed(line)
    said = err.splitlines()[-1]
    assert (code, out) == (2, "")
    assert said.startswith(
        "unmask: micro-batches of 256 tokens do not fit into memory; 128 do: say --data.tokens 128 --data.step '[[0, 4]]' --together 1, which"
    )
    assert typed(f"{line} --data.tokens 128 --data.step [[0,4]] --together 1")[0] == 0


def test_prove(typed: Any, shards: Path) -> None:
    code, out, _ = typed(f"prove bert.tiny --data {shards} --quick --ranks 2 {SMALL}")
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines()] == ["proven"] * 6


def test_recipes_are_listed_and_shown(typed: Any) -> None:
    names = [json.loads(line)["recipe"] for line in typed("show recipes")[1].splitlines()]
    assert {"bert.tiny", "bert.base", "bert.large"} <= set(names)
    found = json.loads(typed("show bert.base")[1])
    assert found["objective"]["mlm"]["rate"] == 0.15
    assert found["model"]["encoder"]["width"] == 768


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("train bert.bass --data S", "there is no recipe 'bert.bass', did you mean bert.base"),
        ("train bert.tiny --data S --optimiser.lr 1", "there is no field optimiser, did you mean optimizer?"),
        ("train bert.tiny --data S --optimizer.lr fast", "--optimizer.lr fast is not of its kind; it should be a number"),
        ("train bert.tiny --data S --optimizer.lr", "--optimizer.lr"),
        ("train bert.tiny --data S --model.encoder.heads 3", "width 128 is not a multiple of 3 heads"),
        ("train bert.tiny --data S --objective mlm --nsp.kind order", "this run does not learn by nsp"),
        ("train bert.tiny --data S --stop 2%", "a run cannot stop after 2% of itself"),
        ("train bert.tiny --data nowhere", "nowhere holds no shards"),
        ("train nowhere", "there is no recipe 'nowhere'"),
        ("prove bert.tiny --data nowhere", "nowhere holds no shards"),
    ],
)
def test_bad_input(line: str, says: str, typed: Any, shards: Path, tmp_path: Path) -> None:
    code, out, err = typed(line.replace(" S", f" {shards}"))
    assert (code, out) == (2, "")
    assert says in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("unmask: ")
    assert list(tmp_path.iterdir()) == [], "a mistake leaves nothing behind"


def test_one_sentence_documents_with_next_sentence_asked_for(typed: Any, tmp_path: Path, shards: Path) -> None:
    (tmp_path / "lines.txt").write_text("".join(f"This is sentence {number} and it is alone.\n" for number in range(400)))
    assert typed(f"prepare lines.txt --layout line --tokenizer {shards / 'tokenizer'} --out alone --validation 0.1")[0] == 0
    code, _, err = typed(f"train bert.tiny --data alone --out mine --steps 2 {SMALL}")
    assert code == 2
    assert "no sequence can be cut from alone: pairs need documents of two sentences or more" in err.splitlines()[-1]
    assert typed(f"train bert.tiny --data alone --out mine --steps 2 {SMALL} --objective mlm")[0] == 0, "no step was made there: it is nobody's"
    assert typed(f"train bert.tiny --data alone --out mine --steps 3 {SMALL} --objective mlm")[0] == 2, "now it is a run's"


@pytest.mark.filterwarnings("default")
def test_too_few_documents_to_evaluate_on(typed: Any, tmp_path: Path, shards: Path) -> None:
    """A validation split of one document makes no wrong sentence: the run says so and goes on."""
    held = [kept_back(hashlib.blake2b(text.encode(), digest_size=16).digest(), 0.02) for text in runs.TEXTS]
    texts = [text for text, back in zip(runs.TEXTS, held, strict=True) if not back or sum(held[: runs.TEXTS.index(text)]) == 0]
    (tmp_path / "text.txt").write_text("\n\n".join(texts))
    assert typed(f"prepare text.txt --tokenizer {shards / 'tokenizer'} --out few --validation 0.02")[0] == 0
    assert json.loads(typed("show few --json")[1])["validation"].startswith("1 documents")
    code, _, err = typed(f"train bert.tiny --data few --out mine --steps 2 {SMALL}")
    assert code == 0
    assert "nothing is evaluated, as of the validation documents no sequence can be cut" in err
