"""Files read without trust: whatever their bytes are, a folder loads or is refused in one sentence, and nothing in it is run."""

from __future__ import annotations

import errno
import json
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save, save_file

from models import Case, make
from unmask.errors import UserError
from unmask.model import folder as folders
from unmask.model import store

MASKED = Case("bert", "BertForMaskedLM", ("words",))
SMALL = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder that loads."""
    make(MASKED, tmp_path / "home")
    return tmp_path / "home"


def refused(call: Callable[[], Any], *names: str) -> str:
    """The sentence: one line that names these things."""
    with pytest.raises(UserError) as caught:
        call()
    said = str(caught.value)
    assert "\n" not in said
    for name in names:
        assert name in said, said
    return said


def read(path: Path) -> dict[str, torch.Tensor] | None:
    """Its tensors, or None where it was refused in a sentence that names it."""
    said, found = "", None
    try:
        found = {name: one.read() for name, one in folders.read_file(path).items()}
    except UserError as error:
        said = str(error)
    assert (path.name in said) == (found is None)
    return found


def header(fields: Any, data: bytes = b"", claimed: int | None = None) -> bytes:
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return struct.pack("<Q", len(text) if claimed is None else claimed) + text + data


# ---- safetensors


def test_safetensors_cut_at_any_length(home: Path) -> None:
    path = home / "model.safetensors"
    whole = path.read_bytes()
    first = 8 + int.from_bytes(whole[:8], "little")
    for length in {0, 1, 7, 8, 9, 100, first - 1, first, first + 1, len(whole) // 2, len(whole) - 4, len(whole) - 1}:
        path.write_bytes(whole[:length])
        refused(lambda: store.load(home), str(path), "cut short", "copy it again")
    path.write_bytes(whole)
    assert store.load(home).model


def test_a_longer_safetensors_is_refused_too(home: Path) -> None:
    path = home / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"\0" * 16)
    refused(lambda: store.load(home), str(path), "damaged")


F32 = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "0 bytes in a file of 0"),
        (header({}, claimed=2_000_000_000), "header of 2,000,000,000 bytes"),
        (header({}, claimed=2**63), "9,223,372,036,854,775,808"),
        (header({"a": F32, "b": F32}, b"\0" * 16), "damaged"),  # two tensors on the same bytes
        (header({"a": F32 | {"data_offsets": [0, 32]}}, b"\0" * 16), "damaged"),
        (header({"a": F32 | {"data_offsets": [16, 0]}}, b"\0" * 16), "damaged"),
        (header({"a": F32 | {"shape": [3, 2]}}, b"\0" * 16), "damaged"),
        (header({"a": F32 | {"shape": [2**62, 2**62]}}, b"\0" * 16), "damaged"),
        (header({"a": F32 | {"dtype": "F33"}}, b"\0" * 16), "damaged"),
        (header({"a": 3}), "damaged"),
        (header([]), "damaged"),
        (header(b"{\xff}"), "damaged"),
        (header(b"[" * 50_000), "damaged"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "cut short or not safetensors"),  # what git leaves without LFS
    ],
)
def test_headers_that_lie(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    refused(lambda: {name: one.read() for name, one in folders.read_file(path).items()}, str(path), says)


@SMALL
@given(place=st.integers(0, 2_000), byte=st.integers(0, 255), cut=st.integers(0, 40))
@example(place=7, byte=255, cut=0)
@example(place=8, byte=0, cut=0)
def test_flipped_bytes_give_a_sentence_or_tensors(tmp_path: Path, place: int, byte: int, cut: int) -> None:
    whole = bytearray(save({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.float16)}, {"format": "pt"}))
    whole[place % len(whole)] = byte
    path = tmp_path / "model.safetensors"
    path.write_bytes(whole[: len(whole) - cut])
    read(path)


HEADERS = st.dictionaries(st.text(max_size=3), st.recursive(st.none() | st.integers() | st.text(max_size=3), st.lists)).map(header)


@SMALL
@given(content=st.binary(max_size=200) | HEADERS)
def test_any_bytes_give_a_sentence(tmp_path: Path, content: bytes) -> None:
    for name in ("model.safetensors", "pytorch_model.bin", "weights.npz"):
        (tmp_path / name).write_bytes(content)
        assert not read(tmp_path / name), "only a file without tensors can be read"


@pytest.mark.parametrize("dtype", ["F4", "F8_E8M0", "F6_E2M3"])
def test_numbers_of_other_kinds(tmp_path: Path, dtype: str) -> None:
    bits = {"F4": 4, "F8_E8M0": 8, "F6_E2M3": 6}[dtype]
    path = tmp_path / "model.safetensors"
    path.write_bytes(header({"a": {"dtype": dtype, "shape": [16], "data_offsets": [0, 2 * bits]}}, b"\1" * 2 * bits))
    read(path)


# ---- pytorch_model.bin


def as_bin(home: Path, **options: Any) -> Path:
    state = load_file(home / "model.safetensors")
    (home / "model.safetensors").unlink()
    torch.save(state, home / "pytorch_model.bin", **options)
    return home / "pytorch_model.bin"


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "before 2020"])
def test_a_good_bin_loads(home: Path, options: dict[str, Any]) -> None:
    expected = store.named_tensors(store.load(home).model)
    as_bin(home, **options)
    found = store.named_tensors(store.load(home).model)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


class Run:
    """A pickle that runs a command when it is opened."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


class Plain:
    """An object of a class of one's own."""


@pytest.mark.parametrize("how", ["zip", "old", "pickle"])
def test_a_pickle_that_runs_code_is_refused_and_does_not(home: Path, tmp_path: Path, how: str) -> None:
    mark = tmp_path / "was-run"
    path, state = home / "pytorch_model.bin", load_file(home / "model.safetensors") | {"x": Run(mark)}
    (home / "model.safetensors").unlink()
    if how == "pickle":
        path.write_bytes(pickle.dumps(state["x"], protocol=2))
    else:
        torch.save(state, path, _use_new_zipfile_serialization=how == "zip")
    refused(lambda: store.load(home), str(path), "would run code", "ask for its model.safetensors")
    assert not mark.exists()
    with path.open("rb") as file:  # the trap is real
        torch.load(file, weights_only=False) if how != "pickle" else pickle.load(file)
    assert mark.exists()


def test_a_pickle_of_an_object_is_refused(home: Path) -> None:
    (home / "model.safetensors").unlink()
    torch.save({"weights": torch.zeros(2), "args": Plain()}, home / "pytorch_model.bin")
    refused(lambda: store.load(home), "pytorch_model.bin", "more than tensors")


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "before 2020"])
def test_a_bin_cut_at_any_length(home: Path, options: dict[str, Any]) -> None:
    path = as_bin(home, **options)
    whole = path.read_bytes()
    for length in [*range(0, 400, 23), len(whole) // 3, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        said = refused(lambda: store.load(home), str(path))
        assert "cut short or damaged" in said or "would run code" in said, "cut within the name of a function, its start is a name too"


@SMALL
@given(places=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4), old=st.booleans())
def test_a_damaged_bin_gives_a_sentence_or_tensors(tmp_path: Path, places: list[tuple[int, int]], old: bool) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.arange(6.0), "b": torch.ones(2, 2, dtype=torch.float16)}, path, _use_new_zipfile_serialization=not old)
    whole = bytearray(path.read_bytes())
    for place, byte in places:
        whole[place % len(whole)] = byte
    path.write_bytes(whole)
    read(path)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ([torch.zeros(2)], "a list, not named tensors"),
        ({"model": {"a": torch.zeros(2)}, "epoch": 3}, "holds model, epoch"),
        ({}, "nothing"),
        ({"a": torch.eye(2).to_sparse()}, "sparse"),
        ({"a": torch.zeros(2, device="meta")}, "has no numbers"),
    ],
)
def test_a_bin_that_holds_something_else(home: Path, state: Any, says: str) -> None:
    (home / "model.safetensors").unlink()
    torch.save(state, home / "pytorch_model.bin")
    refused(lambda: store.load(home), "pytorch_model.bin", says, "state_dict")


# ---- .npz


def test_an_npz_holds_no_pickles(tmp_path: Path) -> None:
    mark = tmp_path / "was-run"
    path = tmp_path / "weights.npz"
    np.savez(path, a=np.array([Run(mark)], object))
    refused(lambda: folders.read_file(path), str(path), "damaged")
    assert not mark.exists()


@pytest.mark.parametrize("array", [np.array(["text"]), np.zeros(2, "V2"), np.zeros(2, "M8[s]")], ids=["text", "bytes", "dates"])
def test_an_npz_of_other_things(tmp_path: Path, array: Any) -> None:
    np.savez(tmp_path / "weights.npz", a=array)
    refused(lambda: folders.read_file(tmp_path / "weights.npz"), "weights.npz")


def test_an_npz_that_is_an_npy_or_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    refused(lambda: folders.read_file(path), str(path))
    np.savez(path, a=np.arange(100.0))
    whole = path.read_bytes()
    for length in range(0, len(whole), 61):
        path.write_bytes(whole[:length])
        refused(lambda: folders.read_file(path), str(path), "cut short or damaged")


# ---- shards


def shards(home: Path, kind: str) -> Path:
    """The folder's weights in three files, as transformers writes them."""
    state = load_file(home / "model.safetensors")
    (home / "model.safetensors").unlink()
    stem, suffix = ("model", ".safetensors") if kind == "safetensors" else ("pytorch_model", ".bin")
    placed = {}
    for i in range(3):
        name = f"{stem}-0000{i + 1}-of-00003{suffix}"
        part = {key: state[key] for key in sorted(state)[i::3]}
        save_file(part, home / name) if kind == "safetensors" else torch.save(part, home / name)
        placed |= dict.fromkeys(part, name)
    index = home / f"{stem}{suffix}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": placed}))
    return index


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_shards_are_the_whole(home: Path, kind: str) -> None:
    expected = store.named_tensors(store.load(home).model)
    shards(home, kind)
    found = store.named_tensors(store.load(home).model)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def change(index: Path, edit: Callable[[dict[str, str]], Any]) -> None:
    placed = json.loads(index.read_text())["weight_map"]
    edit(placed)
    index.write_text(json.dumps({"weight_map": placed}))


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a/../../x.safetensors", "..\\x.safetensors", "x\0.safetensors"])
def test_an_index_that_leads_out_of_the_folder(home: Path, name: str) -> None:
    index = shards(home, "safetensors")
    save_file({"bert.pooler.dense.bias": torch.zeros(48)}, home.parent / "secret.safetensors")
    change(index, lambda placed: placed.update({"bert.pooler.dense.bias": name}))
    refused(lambda: store.load(home), str(home), repr(name), "outside itself")


def test_a_shard_that_is_missing(home: Path) -> None:
    shards(home, "safetensors")
    (home / "model-00002-of-00003.safetensors").unlink()
    refused(lambda: store.load(home), "model-00002-of-00003.safetensors", "copy that file too")


def test_an_index_that_promises_more_than_there_is(home: Path) -> None:
    change(shards(home, "bin"), lambda placed: placed.update({"no.such.tensor": next(iter(placed.values()))}))
    refused(lambda: store.load(home), "index.json", "1 tensors that no shard holds", "no.such.tensor")


@pytest.mark.parametrize("content", ["{}", '{"weight_map": []}', '{"weight_map": {"a": 3}}', "[", "[]", "null"])
def test_an_index_that_is_none(home: Path, content: str) -> None:
    shards(home, "safetensors").write_text(content)
    refused(lambda: store.load(home), "model.safetensors.index.json", "copy it again")


def test_a_folder_without_weights(home: Path) -> None:
    (home / "model.safetensors").unlink()
    refused(lambda: store.load(home), str(home), "no weights", "model.safetensors")


# ---- JSON


@pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe", b"[" * 100_000, b'{"a": 1}}', b"{'a': 1}"])
def test_a_config_that_is_no_json(home: Path, content: bytes) -> None:
    (home / "config.json").write_bytes(content)
    refused(lambda: store.load(home), str(home / "config.json"), "not JSON")


@pytest.mark.parametrize(("content", "kind"), [(b"[]", "list"), (b"3", "int"), (b"null", "NoneType"), (b'"x"', "str")])
def test_a_config_that_is_no_object(home: Path, content: bytes, kind: str) -> None:
    (home / "config.json").write_bytes(content)
    refused(lambda: store.load(home), str(home / "config.json"), "JSON object", kind)


# ---- a folder out


def contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def test_an_existing_folder_is_not_overwritten_unasked(home: Path, tmp_path: Path) -> None:
    loaded = store.load(home)
    before = contents(home)
    refused(lambda: store.save(loaded, home), str(home), "there already", "overwrite")
    assert contents(home) == before
    store.save(loaded, home, overwrite=True)
    assert json.loads((home / "config.json").read_text())["dtype"] == "float32"
    assert [path.name for path in tmp_path.iterdir()] == ["home"], "nothing is left beside it"


def test_an_empty_folder_may_be_written(home: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    store.save(store.load(home), tmp_path / "empty")
    assert store.load(tmp_path / "empty").model


@pytest.mark.parametrize("other", ["thesis.tex", "src/main.py"])
def test_what_is_no_model_folder_is_never_overwritten(home: Path, tmp_path: Path, other: str) -> None:
    loaded = store.load(home)
    mine = tmp_path / "mine"
    (mine / other).parent.mkdir(parents=True)
    (mine / other).write_text("years of work")
    refused(lambda: store.save(loaded, mine, overwrite=True), str(mine), "no model folder")
    (mine / "config.json").write_text("{}")  # half the programs there are have a config.json
    refused(lambda: store.save(loaded, mine, overwrite=True), str(mine), other.split("/")[0], "would remove")
    assert (mine / other).read_text() == "years of work"
    (tmp_path / "file").write_text("x")
    refused(lambda: store.save(loaded, tmp_path / "file", overwrite=True), "no model folder")
    refused(lambda: store.save(loaded, tmp_path / "file" / "below"), "could not be written")


@pytest.mark.parametrize("step", ["weights", "rename", "rename back"])
def test_a_failing_disk_leaves_the_old_folder_whole(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    loaded = store.load(home)
    before, replace, calls = contents(home), os.replace, []

    def full(tensors: Any, path: Path, *_: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    def failing(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == (1 if step == "rename" else 2):
            raise OSError(errno.EIO, "Input/output error")
        replace(source, target)

    monkeypatch.setattr(folders, "save_file", full) if step == "weights" else monkeypatch.setattr(os, "replace", failing)
    refused(lambda: store.save(loaded, home, overwrite=True), str(home), "No space left" if step == "weights" else "Input/output error")
    assert contents(home) == before
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_a_disk_that_is_really_full(home: Path, tmp_path: Path) -> None:
    """safetensors has its own error for it: here the system refuses any file over 20 kB."""
    code = """
import resource, sys
from unmask.model import store
loaded = store.load(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
store.save(loaded, sys.argv[2])
"""
    ended = subprocess.run([sys.executable, "-c", code, str(home), str(tmp_path / "new")], capture_output=True, text=True, timeout=60, check=False)
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("unmask.errors.UserError")
    assert "could not be written" in last
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_an_interrupt_leaves_nothing(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    loaded = store.load(home)
    monkeypatch.setattr(folders, "save_file", stopped)
    with pytest.raises(KeyboardInterrupt):
        store.save(loaded, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_a_link_is_followed_both_ways(home: Path, tmp_path: Path) -> None:
    """As the hub's cache has it: a snapshot of links to blobs. Saving over a link to a folder keeps the link."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    for i, path in enumerate(sorted(home.iterdir())):
        path.rename(blobs / str(i))
        (snapshot / path.name).symlink_to(Path("..") / "blobs" / str(i))
    loaded = store.load(snapshot)
    store.save(loaded, tmp_path / "saved")
    (tmp_path / "link").symlink_to("saved")
    store.save(loaded, tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert store.load(tmp_path / "link").model
    assert len(list(blobs.iterdir())) == 3


def test_names_that_are_no_text_are_saved(home: Path, tmp_path: Path) -> None:
    """A path of bytes that are not UTF-8 would stand in provenance.json."""
    loaded = store.load(home)
    loaded.provenance["source"] = odd = os.fsdecode(b"caf\xe9")
    store.save(loaded, tmp_path / "new")
    assert store.load(tmp_path / "new").provenance["source"] == odd
