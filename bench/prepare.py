"""From text to token files: `unmask prepare`, against `datasets.map` with transformers' fast tokenizer, from the same files.

    python bench/prepare.py --data wiki.txt books.txt --vocab bert-base-uncased.txt
    python bench/prepare.py                                  # Python's own documentation, repeated

Each run is a process of its own on two processes, and the contenders take turns; a figure is the median. The peer reads a line at a time,
as its loader of texts does, without special pieces and in batches of 1,000; ours also finds documents and sentences. Of the peer's bytes, all
that it leaves are counted (the text as its loader keeps it, and the tokens), and the tokens' alone. Needs `pip install 'unmask[bench]'`.
"""

from __future__ import annotations

import argparse
import json
import os
import pydoc_data.topics
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from unmask.study.demo import real_model

OURS = """
import json, sys
from pathlib import Path
from unmask.data.corpus import sources
from unmask.data.prepare import prepare
from unmask.tokenizer import Tokenizer
if __name__ == "__main__":
    files, folder, out, processes = json.loads(sys.argv[1])
    index = prepare(sources(files), Tokenizer.load(Path(folder)), Path(out), processes=processes)
    print(sum(index["tokens"]))
"""
PEER = """
import json, sys
from datasets import disable_progress_bars, load_dataset
from transformers import BertTokenizerFast
if __name__ == "__main__":
    files, folder, out, processes = json.loads(sys.argv[1])
    disable_progress_bars()
    tokenizer = BertTokenizerFast.from_pretrained(folder)
    texts = load_dataset("text", data_files=files, split="train", cache_dir=out)
    def encode(batch):
        return tokenizer(batch["text"], add_special_tokens=False)
    found = texts.map(encode, batched=True, num_proc=processes, remove_columns=["text"])
    print(sum(len(row) for batch in found.iter(10_000) for row in batch["input_ids"]))
"""
CONTENDERS = {"unmask prepare": OURS, "datasets.map": PEER}


def run(program: str, files: list[str], folder: Path, processes: int, counted: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place:
        script, out = Path(place) / "run.py", Path(place) / "out"
        script.write_text(program if counted else program.rsplit("    print(", 1)[0])
        settings = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": place, "TOKENIZERS_PARALLELISM": "false"}
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [sys.executable, str(script), json.dumps([files, str(folder), str(out), processes])]
        done = subprocess.run(command, env=settings, check=True, capture_output=True, text=True)
        taken, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file() and "tokenizer" not in path.parts)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        text = sum(path.stat().st_size for path in out.rglob("text-*.arrow"))  # the peer's loader's
        return {"seconds": taken, "cpu": cpu, "bytes": size, "tokens_alone": size - text, "tokens": float(done.stdout.split()[-1]) if counted else 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=[], help="files of text")
    parser.add_argument("--vocab", type=Path, help="a vocab.txt (the demo model's)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        files, folder = [str(Path(one).absolute()) for one in asked.data], Path(place) / "tokenizer"
        if not files:
            files = [f"{place}/topics.txt"]
            Path(files[0]).write_text("".join(pydoc_data.topics.topics.values()) * 20, encoding="utf-8")
        folder.mkdir()
        (folder / "vocab.txt").write_bytes((asked.vocab or real_model() / "vocab.txt").read_bytes())
        (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "tokenizer_class": "BertTokenizer"}))
        tokens = {name: run(program, files, folder, asked.processes, True)["tokens"] for name, program in CONTENDERS.items()}  # not timed: it counts
        runs = {name: [] for name in CONTENDERS}
        for _ in range(asked.rounds):
            for name, program in CONTENDERS.items():
                runs[name].append(run(program, files, folder, asked.processes, False))
    figures = {
        name: {key: statistics.median(one[key] for one in found) for key in ("seconds", "cpu", "bytes", "tokens_alone")} | {"tokens": tokens[name]}
        for name, found in runs.items()
    }
    peer = figures["datasets.map"]
    for name, one in figures.items():
        speed, other = one["tokens"] / one["seconds"], peer["tokens"] / peer["seconds"]
        print(f"{name:16s}{one['seconds']:6.1f} s ({one['cpu']:.1f} of CPU), {one['tokens']:,.0f} tokens, {speed:,.0f} a second ({speed / other:.2f} x)")
        each, share = one["tokens_alone"] / one["tokens"], one["tokens_alone"] / peer["tokens_alone"]
        print(f"{'':16s}{one['bytes'] / 1e6:.1f} MB ({one['bytes'] / peer['bytes']:.3f} x); the tokens alone {each:.2f} bytes each ({share:.3f} x)")
    if asked.out:
        asked.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
