"""Which files of a folder are for training, which for validation and which for the test, by their names."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from unmask.data import places
from unmask.errors import UserError, near

SPLITS = {"train": ("train", "training", "trn"), "dev": ("dev", "valid", "validation", "val", "devel", "eval"), "test": ("test", "testing")}
ENDINGS = tuple("parquet pq jsonl ndjson json tsv csv conll conllu iob iob2 bio bioes txt".split())  # of files with examples, the most telling first


def splits(folder: str | Path) -> dict[str, tuple[str, ...]]:
    """The files of train, dev and test in a folder, by their names; of the two of MNLI the matched."""
    found: dict[str, dict[tuple[int, int, int], list[str]]] = {}
    for path in places.find([folder]):
        stem, ending = os.path.splitext(_unpacked(path))
        words = re.findall("[a-z]+", stem.lower())
        known = [split for split, names in SPLITS.items() if not set(words).isdisjoint(names)]
        if len(known) == 1 and ending[1:] in ENDINGS:
            exact = stem.lower() in SPLITS[known[0]]
            rank = (path.count(os.sep), 2 * ("mismatched" in words) + (not exact), ENDINGS.index(ending[1:]))
            found.setdefault(known[0], {}).setdefault(rank, []).append(path)
    return {split: tuple(found[split][min(found[split])]) for split in SPLITS if split in found}


def _unpacked(path: str) -> str:
    """A file's name, without the ending of its packing."""
    name = os.path.basename(path)
    stem, ending = os.path.splitext(name)
    return stem if ending[1:] in places.PACKED else name


def files(paths: Sequence[str | Path], split: str | None) -> list[str]:
    """The files that are meant; of a folder that has files for train, dev and test, those of one."""
    part = next((part for part, names in SPLITS.items() if split in names), None)
    if split is not None and part is None:
        raise UserError(f"there is no split {split!r}{near(split, SPLITS)}")
    found = {file for path in paths for file in (_of_folder(str(path), part) if os.path.isdir(path) else places.find([path]))}
    if not found:
        raise UserError("no files were given; give one that holds examples")
    return sorted(found)


def _of_folder(folder: str, part: str | None) -> tuple[str, ...]:
    known = splits(folder)
    if part in known:
        return known[part]
    if part and known:
        raise UserError(f"{folder} has no {part} file beside {' and '.join(known)}; name one {', '.join(SPLITS[part])}, or give the file itself")
    if len(known) > 1:
        raise UserError(f"{folder} holds files for {' and '.join(known)}; give one of them, such as {next(iter(known.values()))[0]}")
    every = places.find([folder])
    return tuple(path for path in every if os.path.splitext(_unpacked(path))[1][1:] in ENDINGS) or tuple(every)
