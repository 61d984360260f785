"""CPU-seconds from a fresh process to the first vector, and of `unmask --help`, against sentence-transformers and transformers.

    python bench/load.py

Each run is a process of its own; contenders take turns; a figure is the median. transformers goes through its
feature-extraction pipeline, which is the shortest way to a vector that it has.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

from unmask.study.demo import real_model

PROGRAMS = {
    "unmask --help": "import unmask.cli\ntry: unmask.cli.main(['--help'])\nexcept SystemExit: pass",
    "import torch": "import torch",
    "unmask": "import unmask\nprint(unmask.load(FOLDER).embed('a text').shape)",
    "sentence-transformers": "from sentence_transformers import SentenceTransformer\nprint(SentenceTransformer(FOLDER, device='cpu').encode('a text').shape)",
    "transformers pipeline": (
        "from transformers import pipeline\nprint(len(pipeline('feature-extraction', model=FOLDER, tokenizer=FOLDER, device='cpu')('a text')[0]))"
    ),
}


def seconds(program: str) -> float:
    """User and system time of a process that runs it, its threads and children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = program.replace("FOLDER", repr(str(real_model())))
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    arguments = parser.parse_args()
    for program in PROGRAMS.values():
        seconds(program)  # the first touch of every file
    taken: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(arguments.rounds):
        for name, program in PROGRAMS.items():
            taken[name].append(seconds(program))
    middle = {name: statistics.median(times) for name, times in taken.items()}
    for name, value in middle.items():
        ratio = f"{value / middle['unmask']:6.2f} x unmask" if "transformers" in name else ""
        print(f"{name:24s}{value:7.2f} s of CPU {ratio}   (spread {min(taken[name]):.2f} to {max(taken[name]):.2f})")
    if arguments.out:
        arguments.out.write_text(json.dumps(middle, indent=2) + "\n")


if __name__ == "__main__":
    main()
