"""Which words were put in: a discriminator's chances, word by word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import unmask
from models import PIECES, Case, make

TEXT = "abc x, yé! q"


@torch.inference_mode()
def test_every_word_has_its_most_doubtful_piece_s_chance(tmp_path: Path) -> None:
    theirs: Any = make(Case("electra", "ElectraForPreTraining", ("replaced",)), tmp_path)
    model = unmask.load(tmp_path)
    found = model.ask("replaced", TEXT)
    assert model.task == "replaced"
    assert [(word.text, word.start, word.end) for word in found.words] == [
        ("abc", 0, 3), ("x", 4, 5), (",", 5, 6), ("yé", 7, 9), ("!", 9, 10), ("q", 11, 12)
    ]  # fmt: skip
    pieces = [["a", "##b", "##c"], ["x"], [","], ["y", "##e"], ["!"], ["q"]]
    ids = [PIECES.index(piece) for piece in ("[CLS]", *(piece for word in pieces for piece in word), "[SEP]")]
    chances = theirs(torch.tensor([ids])).logits[0].sigmoid().tolist()
    start = 1
    for word, run in zip(found.words, pieces, strict=True):
        assert word.score == pytest.approx(max(chances[start : start + len(run)]), abs=1e-5)
        start += len(run)
    doubtful = [word for word in found.words if word.score >= 0.5]
    assert str(found) == ("  ".join(f"{word.text} {word.score:.3f}" for word in doubtful) or "none")


def test_nothing_to_doubt(tmp_path: Path) -> None:
    make(Case("electra", "ElectraForPreTraining", ("replaced",)), tmp_path)
    found = unmask.load(tmp_path).ask("replaced", "")
    assert found.words == ()
    assert str(found) == "none"
