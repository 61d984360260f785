"""Learning a WordPiece vocabulary, against the trainer of `tokenizers`, from the same files.

    python bench/tokenizer.py                                      # Python's own documentation, repeated
    python bench/tokenizer.py --data wiki.txt books.txt --rounds 3 # a text a line
    python bench/tokenizer.py --data korean.txt --alphabet 6000    # what the peer must be told for Korean

Each run is a process of its own, and the contenders take turns; a figure is the median. Both learn from the same lines and are
measured on the one in a hundred that neither sees. CPU seconds are of user and system, threads included.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pydoc_data.topics
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from unmask.tokenizer import Tokenizer
from unmask.tokenizer.report import measure
from unmask.tokenizer.words import is_held

COMMON = "import sys, json\nfiles, size, alphabet, out = json.loads(sys.argv[1])\n"
PROGRAMS = {
    "unmask by frequency": (
        "from pathlib import Path\nfrom unmask.tokenizer.learn import learn\n"
        "def lines():\n    for file in files:\n        with open(file, encoding='utf-8') as f: yield from f\n"
        "learn(lines(), size).save(Path(out))"
    ),
    "unmask by likelihood": (
        "from pathlib import Path\nfrom unmask.tokenizer.learn import learn\n"
        "def lines():\n    for file in files:\n        with open(file, encoding='utf-8') as f: yield from f\n"
        "learn(lines(), size, by='likelihood').save(Path(out))"
    ),
    "tokenizers": (
        "from pathlib import Path\nfrom tokenizers import BertWordPieceTokenizer\n"
        "peer = BertWordPieceTokenizer(lowercase=True, strip_accents=False)\n"
        "peer.train([f + '.learned' for f in files], vocab_size=size, limit_alphabet=alphabet, show_progress=False)\n"
        "Path(out).mkdir()\npeer.save_model(out)\n"
        "(Path(out) / 'tokenizer_config.json').write_text(json.dumps({'do_lower_case': True, 'strip_accents': False}))"
    ),
}


def run(program: str, files: list[str], size: int, alphabet: int) -> dict[str, Any]:
    """CPU seconds, the largest memory, and the vocabulary, of a process that does nothing else."""
    told = "\nimport resource; used = resource.getrusage(resource.RUSAGE_SELF)\nprint(used.ru_utime + used.ru_stime, used.ru_maxrss)"
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "tok"
        code = COMMON + program + told
        done = subprocess.run([sys.executable, "-c", code, json.dumps([files, size, alphabet, str(out)])], capture_output=True, text=True, check=True)
        seconds, memory = done.stdout.split()[-2:]
        tokenizer = Tokenizer.load(out)
        return {"seconds": float(seconds), "megabytes": int(memory) / 1024, "tokenizer": tokenizer, "hash": _hash(out / "vocab.txt")}


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def prepared(data: list[Path], place: Path) -> tuple[list[str], Counter[str]]:
    """Files of lines; beside each what is left for the peer to learn from, as ours leaves lines out by itself. And the words left out."""
    if not data:
        data = [place / "topics.txt"]
        data[0].write_text("".join(pydoc_data.topics.topics.values()) * 3, encoding="utf-8")
    names, held = [], Counter[str]()
    for number, path in enumerate(data):
        name = place / f"{number}.txt"
        names.append(str(name))
        with path.open(encoding="utf-8") as file, name.open("w", encoding="utf-8") as whole, open(f"{name}.learned", "w", encoding="utf-8") as learned:
            for line in file:
                whole.write(line)
                if is_held(line):
                    held.update(line.split())
                else:
                    learned.write(line)
    return names, held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="files of texts, one a line")
    parser.add_argument("--size", type=int, help="entries (30,000; 3,000 without --data)")
    parser.add_argument("--alphabet", type=int, default=1000, help="the peer's limit (1000, its own)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    asked = parser.parse_args()
    size = asked.size or (30_000 if asked.data else 3_000)
    with tempfile.TemporaryDirectory() as place:
        files, held = prepared(asked.data, Path(place))
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in PROGRAMS}
        for _ in range(asked.rounds):
            for name, program in PROGRAMS.items():
                runs[name].append(run(program, files, size, asked.alphabet))
    figures: dict[str, dict[str, Any]] = {}
    for name, results in runs.items():
        found = measure(results[-1]["tokenizer"], held.items())
        figures[name] = {
            "seconds": statistics.median(one["seconds"] for one in results),
            "spread": [min(one["seconds"] for one in results), max(one["seconds"] for one in results)],
            "megabytes": max(one["megabytes"] for one in results),
            "entries": found.entries,
            "pieces_per_word": found.all.pieces_per_word,
            "unknown": found.all.unknown,
            "jamo": found.jamo,
            "hashes": sorted({one["hash"] for one in results}),
        }
    for name, one in figures.items():
        ratio = figures["tokenizers"]["seconds"] / one["seconds"]
        print(
            f"{name:22s}{one['seconds']:7.1f} s of CPU ({one['spread'][0]:.1f} to {one['spread'][1]:.1f}), {ratio:4.2f} x, {one['megabytes']:5.0f} MB, "
            f"{one['entries']:,} entries, {one['pieces_per_word']:.4f} pieces a word, {one['unknown']:.3%} unknown, {one['jamo']} jamo, "
            f"{len(one['hashes'])} different of {asked.rounds}"
        )
    if asked.out:
        asked.out.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
