"""Which files of a folder are for training, validation and test."""

from __future__ import annotations

from pathlib import Path

import pytest

from unmask.data.splits import files, splits
from unmask.errors import UserError


def folder(place: Path, *names: str) -> Path:
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("x")
    return place


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["train.tsv", "dev.tsv", "test.tsv"], {"train": ["train.tsv"], "dev": ["dev.tsv"], "test": ["test.tsv"]}),
        (["train.csv", "valid.csv"], {"train": ["train.csv"], "dev": ["valid.csv"]}),
        (["train.jsonl.gz", "val.jsonl.gz"], {"train": ["train.jsonl.gz"], "dev": ["val.jsonl.gz"]}),
        (["ratings_train.txt", "ratings_test.txt", "README.md"], {"train": ["ratings_train.txt"], "test": ["ratings_test.txt"]}),
        (["train-v1.1.json", "dev-v1.1.json"], {"train": ["train-v1.1.json"], "dev": ["dev-v1.1.json"]}),
        (["msr_paraphrase_train.txt", "train.tsv", "dev.tsv", "dev_ids.tsv"], {"train": ["train.tsv"], "dev": ["dev.tsv"]}),
        (["train.tsv", "dev_matched.tsv", "dev_mismatched.tsv"], {"train": ["train.tsv"], "dev": ["dev_matched.tsv"]}),
        (["train.tsv", "original/train.tsv"], {"train": ["train.tsv"]}),
        (["snli_1.0_train.txt", "snli_1.0_train.jsonl"], {"train": ["snli_1.0_train.jsonl"]}),
        (["d/train-00001-of-00002.parquet", "d/train-00000-of-00002.parquet"], {"train": ["d/train-00000-of-00002.parquet", "d/train-00001-of-00002.parquet"]}),
        (["train.py", "training_dev.csv", "trained.csv"], {}),
    ],
)
def test_files_are_known_by_their_names(tmp_path: Path, names: list[str], expected: dict[str, list[str]]) -> None:
    found = splits(folder(tmp_path, *names))
    assert {split: [str(Path(path).relative_to(tmp_path)) for path in paths] for split, paths in found.items()} == expected


def test_a_split_is_asked_for_by_any_of_its_names(tmp_path: Path) -> None:
    folder(tmp_path, "train.csv", "valid.csv")
    for name in ("dev", "valid", "validation", "val"):
        assert files([tmp_path], name) == [f"{tmp_path}/valid.csv"]
    with pytest.raises(UserError, match=r"has no test file beside train and dev; name one test, testing, or give the file itself"):
        files([tmp_path], "test")
    with pytest.raises(UserError, match=f"{tmp_path} holds files for train and dev; give one of them, such as {tmp_path}/train.csv"):
        files([tmp_path], None)
    with pytest.raises(UserError, match=r"there is no split 'trian', did you mean train\?"):
        files([tmp_path], "trian")
    assert files([tmp_path / "train.csv"], "dev") == [f"{tmp_path}/train.csv"], "a file is what it is"


def test_a_folder_without_splits_is_all_its_tables(tmp_path: Path) -> None:
    folder(tmp_path, "b.csv", "a.csv", "LICENSE")
    assert files([tmp_path], None) == [f"{tmp_path}/a.csv", f"{tmp_path}/b.csv"]
    assert files([tmp_path], "dev") == files([tmp_path], None)
    assert files([tmp_path / "b.csv", tmp_path / "b.csv"], None) == [f"{tmp_path}/b.csv"]
