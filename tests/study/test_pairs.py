"""Minimal pairs: each sentence worth what a loop over its pieces says, with transformers' model in it; means that can be counted by hand."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers.processors import TemplateProcessing

import unmask
from models import Case, make
from unmask import cli
from unmask.errors import UserError
from unmask.infer.predictor import Predictor
from unmask.model.layout import Packed
from unmask.study import pairs
from unmask.study.pairs import Pair, Part, score, sentences

TEXTS = ["ab cd.", "a", "The Quick, brown fox!", "ab cd.", "é ? zz", "dc ba.", "x " * 40 + "y", "lorem ipsum dolor sit amet", "ipsum lorem"]
CASES = [
    Case("bert", "BertForMaskedLM", ("words",)),
    Case("bert", "BertForPreTraining", ("words", "next")),
    Case("modernbert", "ModernBertForMaskedLM", ("words",)),
    Case("roberta", "RobertaForMaskedLM", ("words",)),
    Case("distilbert", "DistilBertForMaskedLM", ("words",)),
    Case("albert", "AlbertForMaskedLM", ("words",)),
    Case("electra", "ElectraForMaskedLM", ("words",)),
]
LEFT = Case("bert", "BertLMHeadModel", ("words",), {"is_decoder": True})


def looped(reference: Any, folder: Path, text: str, *, left: bool = False) -> float:
    """A piece at a time, nothing batched, nothing packed."""
    tokenizer = transformers.BertTokenizerFast.from_pretrained(folder)
    ids = tokenizer(text)["input_ids"]
    assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    total = 0.0
    for place in range(1, len(ids) - 1):
        shown = ids[:place] if left else [*ids[:place], tokenizer.mask_token_id, *ids[place + 1 :]]
        with torch.inference_mode():
            out = reference(input_ids=torch.tensor([shown]))
        logits = out.logits if "logits" in out else out.prediction_logits
        total += logits[0, place - 1 if left else place].log_softmax(-1)[ids[place]].item()
    return total


@pytest.mark.parametrize("case", [*CASES, LEFT], ids=lambda case: case.id)
def test_a_sentence_is_worth_what_a_loop_says(tmp_path: Path, case: Case) -> None:
    reference = make(case, tmp_path)
    expected = np.array([looped(reference, tmp_path, text, left=case is LEFT) for text in TEXTS])
    found = sentences(unmask.load(tmp_path), TEXTS)
    assert found.dtype == np.float64
    assert found == pytest.approx(expected, abs=1e-4)
    assert found[0] == found[3], "the same text, to the bit"
    assert np.ptp(found / [len(text) for text in TEXTS]) > 0.1, "else any answer would do"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    folder = tmp_path_factory.mktemp("pairs")
    make(CASES[0], folder)
    return unmask.load(folder)


@pytest.fixture(scope="module")
def level(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that holds every piece for as likely as any other, so that the shorter sentence is the likelier."""
    folder = tmp_path_factory.mktemp("level")
    reference: Any = make(CASES[0], folder)
    with torch.no_grad():
        for weight in (*reference.cls.predictions.transform.LayerNorm.parameters(), reference.cls.predictions.bias):
            weight.zero_()
    reference.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("case", [CASES[0], CASES[2], LEFT], ids=lambda case: case.id)
def test_the_budget_changes_nothing(tmp_path: Path, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    make(case, tmp_path)
    model, told = unmask.load(tmp_path), []
    expected = sentences(model, TEXTS)
    for budget in (1, 17, 100, 10**6):
        assert sentences(model, TEXTS, budget=budget) == pytest.approx(expected, abs=1e-4)
    monkeypatch.setattr(pairs, "ROWS", 3)
    assert sentences(model, TEXTS, budget=100, tell=lambda done, total: told.append((done, total))) == pytest.approx(expected, abs=1e-4)
    pieces = told[0][1]
    assert told[-1] == (pieces, pieces)
    assert len(told) > 1
    assert [done for done, _ in told] == sorted({done for done, _ in told})


def test_a_batch_keeps_to_its_budget(model: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    layouts: list[Any] = []
    forward = model.model.forward

    def seen(inputs: Any, layout: Any) -> torch.Tensor:
        layouts.append(layout)
        return forward(inputs, layout)

    monkeypatch.setattr(model.model, "forward", seen)
    sentences(model, TEXTS, budget=100)
    lengths = [layout.lengths.tolist() for layout in layouts]
    assert all(sum(one) <= 100 or len(one) == 1 for one in lengths)
    pieces = (41, 22, 18, 10, 5, 5, 4, 1)  # of each text, the one that comes twice but once
    assert [length for one in lengths for length in one] == [count + 2 for count in pieces for _ in range(count)], (
        "longest first: neighbours of like length are quick"
    )


def test_the_logarithm_is_natural_and_the_length_counts(level: Path) -> None:
    found = sentences(unmask.load(level), ["ab c", "a", "The A!"])
    assert found == pytest.approx([-3 * math.log(80), -math.log(80), -5 * math.log(80)], abs=1e-4)


def test_means_counted_by_hand(level: Path) -> None:
    given = [
        ("a", "ab", "one", "short"),
        ("ab", "a", "one", "short"),
        ("ab", "cd", "two", "short"),
        *[("abc", "d", "three", "long")] * 3,
        ("a", "bcd", "three", "long"),
    ]
    found = score(unmask.load(level), given)
    assert found.tasks == {"one": Part(0.5, 2, 0), "two": Part(1.0, 1, 1), "three": Part(0.25, 4, 0)}
    assert found.phenomena == {"short": Part(0.75, 3, 1), "long": Part(0.25, 4, 0)}
    assert found.whole == Part(pytest.approx(1.75 / 3), 7, 1)
    assert score(unmask.load(level), [dict(zip(("good", "bad", "task", "phenomenon"), one, strict=True)) for one in given]) == found
    plain = json.loads(json.dumps(found.json()))
    assert (plain["right"], plain["pairs"], plain["ties"]) == (found.whole.right, 7, 1)
    assert (plain["right_by_phenomenon"], plain["tie_rate"]) == (0.5, 1 / 7)
    assert plain["tasks"]["two"] == {"right": 1.0, "pairs": 1, "ties": 1}
    assert plain["phenomena"]["short"] == {"right": 0.75, "pairs": 3, "ties": 1}


def test_a_tie_is_right_and_is_told(level: Path) -> None:
    found = score(unmask.load(level), [Pair("ab", "ba"), Pair("ab c", "c ab"), Pair("a b", "a")])
    assert found.tasks == {"": Part(2 / 3, 3, 2)}
    assert found.phenomena == {"": Part(2 / 3, 3, 2)}


def test_the_better_sentence_wins(model: Predictor) -> None:
    one, other = sorted(["ab cd.", "dc ba."], key=lambda text: sentences(model, [text])[0])
    assert score(model, [(other, one)]).whole.right == 1.0
    assert score(model, [(one, other)]).whole.right == 0.0


def test_bf16_is_near(model: Predictor, tmp_path: Path) -> None:
    model.save(tmp_path / "copy")
    assert sentences(unmask.load(tmp_path / "copy", precision="bf16"), TEXTS) == pytest.approx(sentences(model, TEXTS), rel=0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("case", [CASES[0], CASES[2], LEFT], ids=lambda case: case.id)
def test_a_gpu_says_the_same(tmp_path: Path, case: Case) -> None:
    make(case, tmp_path)
    expected = sentences(unmask.load(tmp_path, device="cpu"), TEXTS)
    assert sentences(unmask.load(tmp_path, device="cuda"), TEXTS) == pytest.approx(expected, abs=1e-3)
    assert sentences(unmask.load(tmp_path, device="cuda", precision="bf16"), TEXTS) == pytest.approx(expected, rel=0.05)


# ---- what cannot be scored


def test_what_cannot_be_scored_is_told(model: Predictor, tmp_path: Path) -> None:
    assert sentences(model, ["a " * 62]).shape == (1,)
    with pytest.raises(UserError, match=r"^'a a .*…' has 65 pieces, and the model reads 64; leave it out"):
        sentences(model, ["a", "a " * 63])
    with pytest.raises(UserError, match=r"^' ' has no piece that could be scored; leave it out$"):
        sentences(model, ["a", " "])
    with pytest.raises(UserError, match="there are no pairs"):
        score(model, [])
    assert sentences(model, []).shape == (0,)


def test_without_special_pieces(tmp_path: Path) -> None:
    """What reads left to right needs no mask; and what stands first, with nothing before it, is not asked for."""
    for case in (CASES[0], LEFT):
        make(case, tmp_path / case.architecture)
    both, left = (unmask.load(tmp_path / case.architecture) for case in (CASES[0], LEFT))
    for model in (both, left):
        assert model.tokenizer is not None
        del model.tokenizer.roles["mask_token"]
        model.tokenizer.rust.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    with pytest.raises(UserError, match="the tokenizer has no mask piece"):
        sentences(both, ["a b"])
    with torch.inference_mode():
        logits = left.model.read("words", left.model({"tokens": torch.tensor([5, 6]), "positions": torch.arange(2)}, Packed.of([2])), Packed.of([2]))
    assert sentences(left, ["a b"]) == pytest.approx(logits[0].log_softmax(-1)[6].item(), abs=1e-5)
    with pytest.raises(UserError, match="'a' has no piece that could be scored"):
        sentences(left, ["a"])


# ---- the command


def ran(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["study", "pairs", *map(str, words)])
    return ended.value.code, *capsys.readouterr()


def test_the_command(capsys: pytest.CaptureFixture[str], level: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"task": "one", "phenomenon": "p", "good": "a", "bad": "ab"}, {"task": "[b]two", "phenomenon": "q", "good": "ab", "bad": "a", "more": 1}]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    code, out, err = ran(capsys, level, path)
    assert (code, err) == (0, "")
    assert json.loads(out) == score(unmask.load(level), [("a", "ab", "one", "p"), ("ab", "a", "[b]two", "q")]).json()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    code, out, _ = ran(capsys, level, path, "--precision", "auto", "--device", "cpu")
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    assert lines == [
        ["p", "100.00%", "1", "0"],
        ["q", "0.00%", "1", "0"],
        ["mean of 2 phenomena", "50.00%", "2", "0"],
        ["one", "100.00%", "1", "0"],
        ["[b]two", "0.00%", "1", "0"],
        ["mean of 2 tasks", "50.00%", "2", "0"],
    ]
    path.write_text('{"good": "a", "bad": "b", "task": null}')
    _, out, _ = ran(capsys, level, path)
    assert "(no name)" in out
    assert "phenomena" not in out
    assert json.loads(ran(capsys, "--json", level, path)[1])["tasks"] == {"": {"right": 1.0, "pairs": 1, "ties": 1}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b"", "there are no pairs"),
        (b'{"good": "a", "bad": "b"}\n{"good"', "line 2 of {path} is no pair; write"),
        (b"\n[1]", "line 2 of {path} is no pair"),
        (b"[" * 100_000, "line 1 of {path} is no pair"),
        (b'{"good": "a"}', "line 1 of {path} is no pair"),
        (b'{"good": "a", "bad": null}', "line 1 of {path} is no pair"),
        (b'{"good": "a", "bad": "b", "task": 3}', "line 1 of {path} is no pair"),
        (b'{"good": "", "bad": "b"}', "'' has no piece"),
        (b'{"good": "caf\xe9", "bad": "b"}', "{path} is not UTF-8"),
    ],
)
def test_files_that_are_no_pairs(capsys: pytest.CaptureFixture[str], level: Path, tmp_path: Path, text: bytes | None, says: str) -> None:
    path = tmp_path / "pairs.jsonl"
    if text is not None:
        path.write_bytes(text)
    code, out, err = ran(capsys, level, path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says.format(path=path) in err


def test_models_that_score_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text('{"good": "a", "bad": "b"}')
    for case, has in (
        (Case("bert", "BertModel", ()), "none"),
        (Case("bert", "BertForNextSentencePrediction", ("next",)), "only next"),
        (Case("vit", "ViTModel", ()), "none"),
    ):
        make(case, tmp_path / case.architecture)
        code, out, err = ran(capsys, tmp_path / case.architecture, tmp_path / "pairs.jsonl")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"this model has no word head, by which a sentence is scored (of heads it has {has})" in err
