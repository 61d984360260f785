"""Files of a model folder, read without trust and written whole.

Nothing here runs what it reads: weights come through safetensors, through torch's weights-only loader, or through numpy
with pickles off. Every fault is one sentence that names the file.
"""

from __future__ import annotations

import fnmatch
import os
import pickle
import re
import shutil
import struct
import uuid
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from unmask.config import read_json
from unmask.errors import UserError

HEADER_LIMIT = 100_000_000  # bytes; the format's own limit
NPZ_FAULTS = (ValueError, TypeError, KeyError, RuntimeError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error, struct.error)
OURS = ("*.json", "*.safetensors", "*.bin", "*.model", "vocab.txt", "merges.txt", "[0-9]_*", "training", ".gitattributes")
"""What a model folder is made of: overwriting it removes these, and refuses where there is anything else."""


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: its shape is known, its numbers are read when asked for."""

    shape: tuple[int, ...]
    read: Callable[[], Tensor]


Weights = dict[str, Stored]


def inside(folder: Path, name: str) -> Path:
    """A path that a file of the folder names; one that leads out of the folder is refused."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise UserError(f"{folder} names a file outside itself ({name!r}); do not load a folder that does")
    return folder / path


# ---- weights in


def read_weights(folder: Path) -> Weights:
    """Every tensor of the folder, from safetensors (whole or sharded), else from an old pytorch_model.bin."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).is_file():
            return read_file(folder / name)
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _read_shards(folder, index)
    raise UserError(f"{folder} holds no weights: it needs model.safetensors (or pytorch_model.bin)")


def _read_shards(folder: Path, index: Path) -> Weights:
    placed = read_json(index).get("weight_map")
    if not isinstance(placed, dict) or not all(isinstance(name, str) for name in placed.values()):
        raise UserError(f"{index} has no weight_map; copy it again from where it came")
    weights: Weights = {}
    for name in sorted(set(placed.values())):
        path = inside(folder, name)
        if not path.is_file():
            raise UserError(f"{index} names {name}, which is not in {folder}; copy that file too")
        weights.update(read_file(path))
    lost = sorted(set(placed) - set(weights))
    if lost:
        raise UserError(f"{index} promises {len(lost)} tensors that no shard holds ({lost[0]} is the first); copy the shards again")
    return weights


def read_file(path: Path) -> Weights:
    try:
        return {".safetensors": _read_safetensors, ".npz": _read_npz}.get(path.suffix, _read_bin)(path)
    except OSError as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> UserError:
    said = str(error).split("\n")[0].rstrip(".") or type(error).__name__
    return UserError(f"{path} is cut short or damaged ({said}); copy it again from where it came")


def _read_safetensors(path: Path) -> Weights:
    size = path.stat().st_size
    with path.open("rb") as head:
        claimed = int.from_bytes(head.read(8), "little")
    if size < 8 or claimed > min(size - 8, HEADER_LIMIT):
        raise UserError(f"{path} claims a header of {claimed:,} bytes in a file of {size:,}: it is cut short or not safetensors; copy it again")
    try:
        file = safe_open(path, "pt")
        return {
            name: Stored(tuple(file.get_slice(name).get_shape()), partial(_get, path, file, name))
            for name in file.keys()  # noqa: SIM118 (not a dict)
        }
    except SafetensorError as error:
        raise _damaged(path, error) from None


def _get(path: Path, file: Any, name: str) -> Tensor:
    try:
        return file.get_tensor(name)
    except (SafetensorError, RuntimeError, ValueError, AttributeError) as error:  # a kind of number that torch has no name for
        raise UserError(f"{name} in {path} cannot be read ({error}); save it again as float32") from None


def _read_bin(path: Path) -> Weights:
    """An old pytorch_model.bin. The weights-only loader builds nothing but tensors and plain containers, whatever the pickle asks for."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a pickle's protocol
            state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        asks = re.search(r"GLOBAL ([\w.]+)", str(error))
        if asks is None:  # what torch says itself is to load without the guard
            raise _damaged(path, ValueError("it is no pickle of tensors")) from None
        raise UserError(f"{path} is a pickle that holds more than tensors, and would run code ({asks[1]}); ask for its model.safetensors instead") from None
    except Exception as error:  # a damaged pickle ends in any of a dozen kinds, from IndexError to AssertionError
        raise _damaged(path, error) from None
    if not isinstance(state, dict):
        raise UserError(f"{path} holds a {type(state).__name__}, not named tensors; save model.state_dict() instead")
    tensors = {name: value for name, value in state.items() if isinstance(name, str) and isinstance(value, Tensor)}
    odd = [name for name, one in tensors.items() if one.layout != torch.strided or one.device.type != "cpu"]
    if odd or not tensors:
        holds = f"{odd[0]}, which is sparse or has no numbers" if odd else ", ".join(map(str, list(state)[:3])) or "nothing"
        raise UserError(f"{path} holds {holds}, where named tensors were expected; save model.state_dict() instead")
    return {name: stored(tensor) for name, tensor in tensors.items()}


def _read_npz(path: Path) -> Weights:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: stored(torch.from_numpy(file[name])) for name in file.files}
    except NPZ_FAULTS as error:
        raise _damaged(path, error) from None


def stored(tensor: Tensor) -> Stored:
    return Stored(tuple(tensor.shape), lambda: tensor)


# ---- a folder out


def write_folder(folder: Path, files: Mapping[str, str], tensors: Mapping[str, Tensor], *, overwrite: bool = False) -> None:
    """Write beside and rename, so that the folder is there whole or not at all."""
    folder = Path(os.path.realpath(folder))  # what a link leads to is replaced, not the link
    beside = folder.parent / f".{folder.name}.{uuid.uuid4().hex[:8]}"
    try:
        _may_write(folder, overwrite)
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside.mkdir()
        for name, text in files.items():
            (beside / name).parent.mkdir(exist_ok=True)
            (beside / name).write_text(text, encoding="utf-8", errors="backslashreplace")  # half a character, as JSON spells it
        save_file({k: t.detach().cpu().contiguous() for k, t in tensors.items()}, beside / "model.safetensors", {"format": "pt"})
        _put_in_place(beside, folder)
    except (OSError, SafetensorError) as error:  # safetensors has its own name for a full disk
        said = getattr(error, "strerror", None) or error
        raise UserError(f"{folder} could not be written ({said}); free some space or choose another place") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _may_write(folder: Path, overwrite: bool) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise UserError(f"{folder} is there already; choose another name, or say overwrite")
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} is there and is no model folder, so it is not overwritten; choose another name")
    others = sorted(one.name for one in folder.iterdir() if not any(fnmatch.fnmatch(one.name, pattern) for pattern in OURS))
    if others:
        raise UserError(f"{folder} holds more than a model ({', '.join(others[:3])}), which overwriting would remove; move that away, or choose another name")


def _put_in_place(beside: Path, folder: Path) -> None:
    if not folder.exists():
        os.replace(beside, folder)
        return
    old = beside.with_name(beside.name + ".old")
    os.replace(folder, old)
    try:
        os.replace(beside, folder)
    except BaseException:
        os.replace(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
