"""Shards read again: every document as it was, every damage found and named."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corpora
from unmask.data.sentences import sentences
from unmask.data.shards import Corpus, kept_back, share_of_validation, width_of
from unmask.errors import UserError
from unmask.tokenizer import Tokenizer

TEXTS = corpora.documents(300)


@pytest.fixture(scope="module")
def tokenizer(minilm: Path) -> Tokenizer:
    return Tokenizer.load(minilm)


@pytest.fixture
def home(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    return corpora.shards(tmp_path, tokenizer, TEXTS)


def plainly(tokenizer: Tokenizer, text: str) -> list[list[int]]:
    """The ids of each sentence, by the slow way."""
    found = [tokenizer.rust.encode(text[start:end], add_special_tokens=False).ids for start, end in sentences(text)]
    return [ids for ids in found if ids]


def test_every_document_comes_back(home: Path, tokenizer: Tokenizer) -> None:
    """In both splits together each once, sentence by sentence."""
    left = sorted(plainly(tokenizer, text) for text in TEXTS)
    found = []
    for split in ("train", "validation"):
        corpus = Corpus(home, split)
        documents = corpus.fetch(np.arange(len(corpus)))
        for number in range(len(documents)):
            bounds = documents.sentences[documents.documents[number] : documents.documents[number + 1] + 1]
            found.append([documents.tokens[a:b].tolist() for a, b in itertools.pairwise(bounds)])
        assert corpus.tokens == len(documents.tokens)
    assert sorted(found) == left
    assert len(Corpus(home).shards) > 3
    assert 0 < len(Corpus(home, "validation")) < 80


def test_any_order_of_numbers(home: Path) -> None:
    corpus = Corpus(home)
    whole = corpus.fetch(np.arange(len(corpus)))
    asked = np.array([len(corpus) - 1, 0, 77, 77, 5])
    some = corpus.fetch(asked)
    assert some.numbers.tolist() == asked.tolist()
    for i, number in enumerate(asked):
        assert np.array_equal(some.tokens[slice(*some.bounds[i : i + 2])], whole.tokens[slice(*whole.bounds[number : number + 2])])
    assert len(corpus.fetch(np.array([], int))) == 0
    with pytest.raises(IndexError):
        corpus.fetch(np.array([len(corpus)]))


def test_the_index_counts_what_is_there(home: Path) -> None:
    index = json.loads((home / "index.json").read_text())
    for name in ("documents", "sentences", "tokens"):
        assert index[name] == [sum(shard[name][part] for shard in index["shards"]) for part in (0, 1)]
    assert sum(index["documents"]) == len(TEXTS)
    assert index["dtype"] == "uint16"
    size = sum(path.stat().st_size for path in home.glob("*.safetensors"))
    expected = 2 * sum(index["tokens"]) + 4 * (sum(index["sentences"]) + sum(index["documents"]))
    assert expected < size < expected + 600 * len(index["shards"])


def test_large_vocabularies_are_wider() -> None:
    assert width_of(65_536) is np.uint16
    assert width_of(65_537) is np.uint32


@pytest.mark.parametrize("where", [0, 8, 40, 300, -1], ids=str)
def test_a_flipped_bit_is_found_and_named(home: Path, where: int) -> None:
    path = sorted(home.glob("*.safetensors"))[1]
    data = bytearray(path.read_bytes())
    data[where] ^= 4
    path.write_bytes(data)
    with pytest.raises(UserError, match=rf"{path.name} is not what was written \(its hash differs\): .*run the same unmask prepare once more"):
        Corpus(home).verify()


def test_a_shard_cut_short_or_gone_is_named(home: Path) -> None:
    first, second = sorted(home.glob("*.safetensors"))[:2]
    first.write_bytes(first.read_bytes()[:-100])
    with pytest.raises(UserError, match=first.name):
        Corpus(home).verify()
    first.unlink()
    with pytest.raises(UserError, match=f"{first.name} is missing"):
        Corpus(home).fetch(np.array([0]))
    assert len(Corpus(home).fetch(np.array([len(Corpus(home)) - 1]))) == 1, "the others still serve"
    assert second.is_file()


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no shards .*give the folder that unmask prepare wrote"):
        Corpus(tmp_path)
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(UserError, match="did not finish; run the same command again"):
        Corpus(tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 2}, "of format 2"),
        ({"shards": [{"file": "../00000.safetensors", "sha256": "", "documents": [1, 0], "sentences": [1, 0], "tokens": [1, 0]}]}, "is no name of a file"),
        ({"shards": [{"file": "00000.safetensors"}]}, "index of .* is damaged"),
    ],
)
def test_a_damaged_index(home: Path, change: dict[str, object], says: str) -> None:
    index = json.loads((home / "index.json").read_text())
    (home / "index.json").write_text(json.dumps(index | change))
    with pytest.raises(UserError, match=says):
        Corpus(home)


def test_a_split_by_a_wrong_name(home: Path) -> None:
    with pytest.raises(UserError, match="no split 'test'; they have train and validation"):
        Corpus(home, "test")


def test_shards_of_an_object_store(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec's store in memory stands for S3 and its like; what was read once is read from here."""
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store = fsspec.filesystem("memory")
    store.put(str(home), "/far/shards", recursive=True)
    near, far = Corpus(home), Corpus("memory://far/shards")
    numbers = np.arange(len(near))
    assert np.array_equal(near.fetch(numbers).tokens, far.fetch(numbers).tokens)
    store.rm("/far/shards/00000.safetensors")
    assert np.array_equal(near.fetch(numbers).tokens, Corpus("memory://far/shards").fetch(numbers).tokens)
    store.rm("/far/shards", recursive=True)
    with pytest.raises(UserError, match=r"memory://far/shards/index.json is not there"):
        Corpus("memory://far/shards")


def test_validation_is_by_the_hash_of_a_document() -> None:
    digests = [number.to_bytes(8, "big") * 2 for number in range(0, 2**64, 2**64 // 997)]
    assert not any(kept_back(digest, 0.0) for digest in digests)
    one, more = ({digest for digest in digests if kept_back(digest, share)} for share in (0.1, 0.3))
    assert one < more, "a larger share keeps what a smaller one kept"
    with pytest.raises(UserError, match=r"validation share of 1.5"):
        share_of_validation(1.5)


def test_a_shard_is_a_file_of_safetensors(home: Path) -> None:
    from safetensors.numpy import load_file

    from unmask.data.shards import mapped

    for path in home.glob("*.safetensors"):
        theirs = load_file(path)
        assert all(np.array_equal(one, theirs[name]) for name, one in zip(("tokens", "sentences", "documents"), mapped(path), strict=True))


def test_a_tokenizer_other_than_the_one_that_made_them(home: Path, tokenizer: Tokenizer) -> None:
    corpus = Corpus(home)
    corpus.made_by(tokenizer)
    corpus.made_by(Tokenizer.load(home / "tokenizer"))
    other = Tokenizer.from_vocabulary({piece: number for number, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])})
    with pytest.raises(UserError, match=r"shards was made with another tokenizer than the model's \(30,522 entries to 6\); run unmask prepare with that one"):
        corpus.made_by(other)


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer": None},
        {"dtype": "foo"},
        {"vocabulary": "many"},
        {"shards": None},
        {"shards": [1]},
        {"sources": 3},
        {"sentences": [1]},
        {"tokens": [1.5, 2]},
    ],
)
def test_an_index_edited_by_hand(change: dict[str, Any], home: Path) -> None:
    index = json.loads((home / "index.json").read_text())
    (home / "index.json").write_text(json.dumps(index | change))
    with pytest.raises(UserError, match=r"the index of .*shards is damaged \(.*\); copy it again, or run unmask prepare anew"):
        Corpus(home)


@pytest.mark.parametrize("documents", [5, -5])
def test_an_index_that_counts_otherwise(documents: int, home: Path) -> None:
    index = json.loads((home / "index.json").read_text())
    index["shards"][0]["documents"][0] += documents
    (home / "index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"the index of .* is damaged \(it counts other than 00000.safetensors holds\)"):
        Corpus(home).verify()


def test_other_shards_at_the_same_address(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a copy that was damaged, when what it was copied from is whole."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = corpora.shards(tmp_path / "one", tokenizer, TEXTS)
    url = f"file://{tmp_path}/far"
    shutil.copytree(first, tmp_path / "far")
    assert Corpus(url).fetch(np.arange(3)).tokens.tolist() == Corpus(first).fetch(np.arange(3)).tokens.tolist()
    second = corpora.shards(tmp_path / "two", tokenizer, TEXTS[::-1])
    shutil.rmtree(tmp_path / "far")
    shutil.copytree(second, tmp_path / "far")
    assert Corpus(url).fetch(np.arange(3)).tokens.tolist() == Corpus(second).fetch(np.arange(3)).tokens.tolist()
    for copy in (tmp_path / "cache").rglob("0*.safetensors"):
        copy.write_bytes(copy.read_bytes()[:-1] + b"x")
    assert Corpus(url).fetch(np.arange(3)).tokens.tolist() == Corpus(second).fetch(np.arange(3)).tokens.tolist()
    assert Tokenizer.load(Corpus(url).tokenizer).fingerprint == tokenizer.fingerprint
