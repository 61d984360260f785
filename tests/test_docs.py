"""Every command and every Python block of the documents runs, document by document, as a reader would type them.

A block tagged `gpu`, `cluster` or `container` after its language is counted, not run; one with the name of a file is also put
there for the blocks after it. Hub names stand in a cache made here, with small random models behind them. `make test` is asked
for without running it, since this is it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from models import Case, make

ROOT = Path(__file__).parents[1]
TAGS = {"gpu", "cluster", "container"}
TAGGED = 2  # how many blocks may go untested: one reads from an object store on a cluster, one starts several processes by torchrun
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = {"id2label": {0: "O", 1: "B-PER", 2: "I-PER"}, "label2id": {"O": 0, "B-PER": 1, "I-PER": 2}}
HUB = {
    "google-bert/bert-base-uncased": Case("bert", "BertForPreTraining", ("words", "next")),
    "dslim/bert-base-NER": Case("bert", "BertForTokenClassification", ("tag",), NAMES),
    "deepset/bert-base-cased-squad2": Case("bert", "BertForQuestionAnswering", ("spans",)),
    "google/vit-base-patch16-224": Case("vit", "ViTForImageClassification", ("classify",), NAMES),
}


@dataclass(frozen=True)
class Block:
    language: str
    tags: frozenset[str]
    text: str
    line: int


def blocks(path: Path) -> Iterator[Block]:
    text = path.read_text(encoding="utf-8")
    for found in re.finditer(r"^```(\w+)([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(found[1], frozenset(found[2].split()), found[3], text.count("\n", 0, found.start()) + 1)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, vocabulary: list[str]) -> Path:
    """A cache of the hub, as huggingface_hub lays it out."""
    home = tmp_path_factory.mktemp("hub")
    for name, case in HUB.items():
        place = home / "hub" / f"models--{name.replace('/', '--')}"
        settings = {**case.settings, **({"vocab_size": len(vocabulary)} if case.family == "bert" else {})}
        make(Case(case.family, case.architecture, case.heads, settings), place / "snapshots" / "made")
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text("made")
        if case.family == "bert":
            (place / "snapshots" / "made" / "vocab.txt").write_text("".join(piece + "\n" for piece in vocabulary), encoding="utf-8")
    return home


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_runs(path: Path, hub: Path, tmp_path: Path) -> None:
    binaries = Path(sys.executable).parent
    settings = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}", "HF_HOME": str(hub), "HF_HUB_OFFLINE": "1"}
    Image.new("RGB", (40, 30), "red").save(tmp_path / "photo.png")
    started = "unmask demo --out minilm" in path.read_text(encoding="utf-8")
    if not started and "minilm" in path.read_text(encoding="utf-8"):
        subprocess.run(["unmask", "demo", "--out", "minilm"], cwd=tmp_path, env=settings, check=True, capture_output=True)
    for block in blocks(path):
        if block.tags & TAGS or block.language not in ("bash", "python"):
            continue
        for name in (tag for tag in block.tags if tag.endswith(".py")):
            (tmp_path / name).write_text(block.text)
        command = ["bash", "-euo", "pipefail", "-c", typed(block.text)] if block.language == "bash" else [sys.executable, "-c", block.text]
        done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{path.name}:{block.line}\n{block.text}\n{done.stdout}\n{done.stderr}"


def typed(text: str) -> str:
    """`make` runs in the project; `make test` only says what it would do."""
    text = re.sub(r"^make test$", f"make -n -C {ROOT} test > /dev/null", text, flags=re.MULTILINE)
    return re.sub(r"^make demo$", f"make -n -C {ROOT} demo > /dev/null && unmask demo", text, flags=re.MULTILINE)


def test_blocks_are_in_known_languages() -> None:
    """A block in a language that nobody runs would go untested unseen."""
    strange = [f"{path.name}:{b.line} {b.language}" for path in DOCUMENTS for b in blocks(path) if b.language not in ("bash", "python", "text", "json")]
    assert not strange


def test_nothing_waits_to_be_filled_in() -> None:
    for path in DOCUMENTS:
        assert not re.search(
            r"\b(TODO|FIXME|TBD|[A-Z]+_[A-Z]+)\b", re.sub(r"```.*?```|`[^`]*`|https?://\S+", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        ), path


def test_few_blocks_are_tagged() -> None:
    assert sum(bool(block.tags & TAGS) for path in DOCUMENTS for block in blocks(path)) == TAGGED


def test_links_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for link in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / link).exists(), f"{path.name} links to {link}"


def test_every_document_is_short_enough_to_read() -> None:
    for path in DOCUMENTS:
        if path.name != "log.md":
            assert len(path.read_text(encoding="utf-8").split()) < 1500, path


def test_the_documents_speak_of_the_project_alone() -> None:
    for path in (*DOCUMENTS, ROOT / "CHANGELOG.md"):
        assert not re.search(r"\b(issue|session) ?#?\d|(?<![\w.])/(home|root|tmp)/", path.read_text(encoding="utf-8")), path
