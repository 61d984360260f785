"""Small corpora made for tests: real English of Python's own documentation, shards of it, and a tokenizer for it."""

from __future__ import annotations

import pydoc_data.topics
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unmask.data.corpus import sources
from unmask.data.prepare import prepare
from unmask.tokenizer import Tokenizer


def documents(count: int, seed: int = 0, longest: int = 40) -> list[str]:
    """Documents of 1 to `longest` sentences, a line each."""
    draw = random.Random(seed)
    words = [word for word in " ".join(pydoc_data.topics.topics.values()).split() if word.isalpha()]
    return ["\n".join(" ".join(draw.choices(words, k=draw.randint(1, 20))) + "." for _ in range(draw.randint(1, longest))) for _ in range(count)]


def write(place: Path, texts: Sequence[str]) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return place


def shards(place: Path, tokenizer: Tokenizer, texts: Sequence[str], **settings: Any) -> Path:
    """Shards of these documents, several to look into."""
    write(place / "text.txt", texts)
    settings = {"validation": 0.1, "block": 20_000, "engine": "here", **settings}
    prepare(sources([place / "text.txt"], layout="blank"), tokenizer, place / "shards", **settings)
    return place / "shards"
