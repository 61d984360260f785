"""Texts per second into vectors, against sentence-transformers, on the same texts in the same run.

    python bench/infer.py                           # CPU, one thread, the real MiniLM and BERT-base's shape
    python bench/infer.py --device cuda --texts 16384
    python bench/infer.py --data file.txt           # a text a line, instead of made ones

Contenders take turns, round after round; a figure is the median over rounds of texts per CPU-second (on a GPU: per second).
The peer runs as it comes (float32, batches of 32), then at the best of several batch sizes in float32 and in bf16.
"""

from __future__ import annotations

import argparse
import json
import platform
import pydoc_data.topics
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers
import torch
import transformers

import unmask
from unmask.model import families, store
from unmask.model.card import Card
from unmask.study.demo import real_model
from unmask.tokenizer import Tokenizer

transformers.utils.logging.disable_progress_bar()
BATCHES = {"cpu": (8, 32, 128), "cuda": (32, 128, 256, 512)}


def mixed_texts(count: int, seed: int = 0) -> list[str]:
    """Runs of words of Python's own documentation, their lengths log-normal as those of real texts: about 52 pieces on average."""
    words = " ".join(pydoc_data.topics.topics.values()).split()
    draw = random.Random(seed)
    texts = []
    for _ in range(count):
        length = min(200, max(2, round(draw.lognormvariate(2.95, 0.8))))
        start = draw.randrange(len(words) - length)
        texts.append(" ".join(words[start : start + length]))
    return texts


def base_folder(place: Path) -> Path:
    """BERT-base's shape with random weights, behind the MiniLM's tokenizer."""
    model = families.new(families.shape("bert.base"))
    tokenizer = Tokenizer.load(real_model())
    store.save(store.Loaded(model, Card(pooling=("mean",), normalise=True, length=256), tokenizer, {}, {}), place / "base")
    return place / "base"


def contenders(folder: Path, device: str, texts: list[str]) -> dict[str, Callable[[list[str]], Any]]:
    ours = {f"unmask {precision}": unmask.load(folder, precision=precision, device=device).embed for precision in ("float32", "auto")}
    theirs: dict[str, Callable[[list[str]], Any]] = {}
    for name, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        model = sentence_transformers.SentenceTransformer(str(folder), device=device, model_kwargs={"dtype": dtype})
        if name == "float32":
            theirs["peer as it comes"] = lambda given, model=model: model.encode(given, show_progress_bar=False)
        sample = texts[:128] if device == "cpu" else texts[:2048]
        best = max(BATCHES[device], key=lambda size: timed(lambda given: model.encode(given, batch_size=size, show_progress_bar=False), sample, device)[0])  # noqa: B023
        theirs[f"peer {name} batch {best}"] = lambda given, model=model, best=best: model.encode(given, batch_size=best, show_progress_bar=False)
    return ours | theirs


def timed(run: Callable[[list[str]], Any], texts: list[str], device: str) -> tuple[float, Any]:
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    found = run(texts)
    return len(texts) / (clock() - start), found


def measure(name: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    texts = Path(arguments.data).read_text(encoding="utf-8").splitlines()[: arguments.texts] if arguments.data else mixed_texts(arguments.texts)
    tokenizer = Tokenizer.load(folder)
    pieces = statistics.mean(len(e) for e in tokenizer.encode(texts, length=256))
    print(f"\n{name}: {len(texts)} texts of {pieces:.0f} pieces on average, {arguments.device}, {torch.get_num_threads()} thread(s)")
    entered = contenders(folder, arguments.device, texts)
    for run in entered.values():
        run(texts[:64])
    rates: dict[str, list[float]] = {who: [] for who in entered}
    vectors: dict[str, Any] = {}
    for _ in range(arguments.rounds):
        for who, run in entered.items():
            speed, vectors[who] = timed(run, texts, arguments.device)
            rates[who].append(speed)
    plain = statistics.median(rates["peer as it comes"])
    reference = np.asarray(vectors["peer as it comes"], np.float32)
    rows = {}
    for who, found in vectors.items():
        found = np.asarray(found, np.float32)
        cosine = (found * reference).sum(-1) / np.linalg.norm(found, axis=-1) / np.linalg.norm(reference, axis=-1)
        middle = statistics.median(rates[who])
        rows[who] = {"texts_per_second": round(middle, 1), "ratio": round(middle / plain, 2), "worst_cosine": round(float(cosine.min()), 6)}
        spread = f"spread {min(rates[who]):.1f} to {max(rates[who]):.1f}"
        print(f"  {who:26s}{middle:10.1f} texts/s   x{middle / plain:5.2f}   worst cosine {cosine.min():.6f}   ({spread})", flush=True)
    return {"model": name, "device": arguments.device, "texts": len(texts), "pieces": round(pieces, 1), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", help="a file with a text a line")
    parser.add_argument("--models", nargs="*", default=["minilm", "base"])
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as place:
        folders = {"minilm": real_model, "base": lambda: base_folder(Path(place))}
        found = [measure(name, folders[name](), arguments) for name in arguments.models]
    about = {"torch": torch.__version__, "sentence_transformers": sentence_transformers.__version__, "machine": platform.processor() or platform.machine()}
    if arguments.out:
        arguments.out.write_text(json.dumps({"about": about, "found": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
