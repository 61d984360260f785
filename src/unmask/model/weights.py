"""Names in files meet names here: every tensor of a file finds its parameter, or is named in an error."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from unmask.errors import UserError
from unmask.model.families import family
from unmask.model.families.base import Family, known_by
from unmask.model.folder import Stored, Weights
from unmask.model.model import Model, initialise

COUNTER = "num_batches_tracked"


def named(kind: Family, weights: Weights, where: Path) -> Weights:
    """One spelling for what files spell in several: a prefix or none, LayerNorm's gamma and beta, buffers."""
    found: Weights = {}
    for name, one in kind.foreign({name.removeprefix("module."): one for name, one in weights.items()}).items():
        plain = name.removeprefix(kind.prefix)
        plain = re.sub(r"(LayerNorm)\.gamma$", r"\1.weight", plain)
        plain = re.sub(r"(LayerNorm)\.beta$", r"\1.bias", plain)
        if plain in found:
            raise UserError(f"{where} holds {plain} twice, under two spellings; which of them counts cannot be known")
        found[plain] = one
    return {name: one for name, one in found.items() if not any(fnmatch.fnmatch(name, pattern) for pattern in kind.buffers)}


def joined(kind: Family, weights: Weights, tied: bool, where: Path) -> Weights:
    """Tensors that have a second name, under their first. Where words are not tied the second counts, as in transformers."""
    found = dict(weights)
    for second, first in kind.aliases.items():
        if second not in found:
            continue
        other = found.pop(second)
        if tied and first in found and not torch.equal(found[first].read().float(), other.read().float()):
            raise UserError(f'{second} in {where} is not {first}, though config.json ties them; set "tie_word_embeddings": false there')
        found[first] = other
    return found


def fill(model: Model, kind: Family, weights: Weights, *, new: Sequence[str], leave: Sequence[str], where: str, seed: int) -> None:
    """Give every tensor its numbers; what is missing, unused or of another shape is named."""
    ours = dict(tensors(model))
    fresh = {name for name in ours if name.startswith("heads.") and name.split(".")[1] in new and not _shared(kind, name, ours[name], weights)}
    if any(model.heads[head].over == "pooled" for head in new) and known_by(kind, "pooler") not in weights:
        fresh |= {name for name in ours if name.startswith("pooler.")}
    theirs = {name: kind.theirs(name) for name in ours if name not in fresh}
    lost = [name for names in theirs.values() for name in names if name not in weights and not name.endswith(COUNTER)]
    if lost:
        raise UserError(f"{where} lacks {listed(lost)}; it is not whole, or config.json describes another model")
    state = {name: _tensor(names, weights, ours[name], where) for name, names in theirs.items()}
    used = {name for names in theirs.values() for name in names}
    if model.tied and kind.theirs("heads.words.decoder.weight")[0] in weights:
        used.add(_same_as_embedding(kind, weights, where))
    unused = sorted(name for name in weights if name not in used and not any(fnmatch.fnmatch(name, pattern) for pattern in leave))
    if unused:
        raise UserError(f"{where} holds weights that nothing here uses: {listed(unused)}; {_why(kind, unused)}")
    _put(model, state, fresh, seed)


def tensors(model: Model) -> Iterator[tuple[str, Tensor]]:
    """What a file holds of a model: its parameters, each once, and running statistics."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def _shared(kind: Family, ours: str, tensor: Tensor, weights: Weights) -> bool:
    """Whether the file holds this part of a new head: ModernBERT pretrains the dense layer that all its heads begin with."""
    (theirs,) = kind.theirs(ours)
    return ".out." not in ours and theirs in weights and weights[theirs].shape == tuple(tensor.shape)


def _why(kind: Family, unused: Sequence[str]) -> str:
    owners = [head for head in kind.heads if known_by(kind, head) in unused]
    if len(owners) > 1:
        classes = [name for name, heads in kind.architectures.items() if set(heads) & set(owners)]
        return f"they are a head of some kind; say which in config.json, by one of these names in its list of architectures: {', '.join(classes)}"
    return f"if they may stay behind, say leave={[unused[0]]}"


def _tensor(names: Sequence[str], weights: Weights, ours: Tensor, where: str) -> Tensor:
    """One of our tensors, read from the file, in float32."""
    parts: list[Tensor] = []
    shape = tuple(ours.shape)
    for name in names:
        if name.endswith(COUNTER):  # how many batches a norm has seen: nothing is computed from it, and old files lack it
            return weights[name].read().long().reshape(()) if name in weights else torch.tensor(0)
        wanted = (shape[0] // len(names), *shape[1:]) if shape else shape
        _agree(name, weights[name], wanted, where)
        found = weights[name].read()
        if not found.is_floating_point():
            raise UserError(f"{name} in {where} holds {str(found.dtype).removeprefix('torch.')} numbers, not floats; quantised folders are not read here")
        parts.append(found.float())
        if not torch.isfinite(parts[-1].sum()) and not torch.isfinite(parts[-1]).all():
            raise UserError(f"{name} in {where} holds numbers that are not finite (NaN or infinite): its training had failed; use an earlier checkpoint")
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _agree(name: str, one: Stored, wanted: tuple[int, ...], where: str) -> None:
    if one.shape != wanted:
        said = [" x ".join(map(str, shape)) or "a single number" for shape in (wanted, one.shape)]
        raise UserError(f"{name} in {where} is {said[1]}, config.json makes it {said[0]}: they are of two models; copy both from one place")


def _same_as_embedding(kind: Family, weights: Weights, where: str) -> str:
    """A file may hold the tied matrix twice; were they two matrices, one would be lost in silence."""
    name, words = kind.theirs("heads.words.decoder.weight")[0], kind.theirs("embed.words.weight")[0]
    if not torch.equal(weights[name].read().float(), weights[words].read().float()):
        raise UserError(f'{name} in {where} is not the embedding, though config.json ties them; set "tie_word_embeddings": false there')
    return name


def _put(model: Model, state: dict[str, Tensor], fresh: set[str], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for head in sorted({".".join(name.split(".")[:2]) if name.startswith("heads.") else "pooler" for name in fresh}):
        module = model.get_submodule(head)
        module.to_empty(device="cpu")
        initialise(module, draw)
        state |= {f"{head}.{name}": p for name, p in module.named_parameters() if f"{head}.{name}" in fresh}
    for name, tensor in state.items():
        owner, _, last = name.rpartition(".")
        module = model.get_submodule(owner)
        if isinstance(module, nn.ParameterList):
            module[int(last)] = nn.Parameter(tensor.detach())
        elif last in module._buffers:
            setattr(module, last, tensor)
        else:
            setattr(module, last, nn.Parameter(tensor.detach()))
    model.tie()


def named_tensors(model: Model) -> dict[str, Tensor]:
    """Every tensor under the name it has in a file."""
    kind = family(model.config.family)
    found: dict[str, Tensor] = {}
    for ours, tensor in tensors(model):
        theirs = kind.theirs(ours)
        for name, part in zip(theirs, tensor.chunk(len(theirs)) if len(theirs) > 1 else (tensor,), strict=True):
            trunk = not ours.startswith("heads.")
            found[kind.prefix + name if trunk and len(model.heads) else kind.native(model.config, name)] = part
    if not model.config.tied:
        found |= {second: found[first].clone() for second, first in kind.aliases.items() if first in found}
    return found


def patterns(kind: Family, owner: str) -> list[str]:
    """What a head's tensors are called in files, or the pooler's."""
    names = [theirs for ours, theirs in kind.names.items() if ours.removeprefix("heads.").startswith(f"{owner}.")]
    return [f"{name}*" for name in names if isinstance(name, str)]


def listed(names: Iterable[str], most: int = 3) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
