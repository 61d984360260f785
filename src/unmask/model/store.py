"""A model folder to a model and back: names in files to names here, every weight accounted for by name."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unmask import __version__
from unmask.errors import UserError
from unmask.model.card import Card, card_files, read_card
from unmask.model.embed import TextConfig
from unmask.model.families import build, family, recognise
from unmask.model.families import families as all_families
from unmask.model.families.base import Family
from unmask.model.folder import Stored, Weights, read_file, read_json, read_weights, write_folder
from unmask.model.model import Model, ModelConfig, initialise
from unmask.tokenizer import Tokenizer

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?$")
HUB_FILES = ["*.json", "vocab.txt", "merges.txt", "*.model", "*/config.json", "*.safetensors"]


@dataclass
class Loaded:
    """What a folder holds, in memory."""

    model: Model
    card: Card
    tokenizer: Tokenizer | None
    config: dict[str, Any]  # config.json as it was found
    provenance: dict[str, Any]


def load(
    name: str | Path,
    *,
    heads: Mapping[str, int] | None = None,
    leave: Sequence[str] = (),
    seed: int = 0,
) -> Loaded:
    """Read a model folder (or a hub id, or a bare .npz of ViT).

    `heads` asks for these heads, with so many labels each, in place of the folder's own; one whose weights are not there is new.
    `leave` lists patterns of tensors in the file that may stay unused.
    """
    folder = locate(name)
    if folder.is_file():
        weights = read_file(folder)
        config = next((found for one in all_families() if (found := one.bare(weights))), None)
        if config is None:
            raise UserError(f"{folder} is one file and says no shape; give the folder that holds it and its config.json")
        folder = folder.parent / "config.json" / "none"  # nothing else is read beside a bare file
    else:
        if not (folder / "config.json").is_file():
            raise UserError(f"{folder} holds no config.json, so it is no model folder; give the folder that save wrote")
        config, weights = read_json(folder / "config.json"), read_weights(folder)
    kind = recognise(config)
    shape = _shape(kind, config, folder)
    weights = _named(kind, weights)
    chosen = _heads(kind, config, weights) if heads is None else dict(heads)
    shape = replace(shape, heads=tuple(chosen.items()), pooler=_carries_pooler(kind, weights))
    with torch.device("meta"):
        model = build(shape)
    _fill(model, kind, weights, new=() if heads is None else tuple(heads), leave=leave, where=str(name), seed=seed)
    card = _labelled(read_card(folder, config), chosen, config, shape)
    tokenizer = Tokenizer.load(folder) if isinstance(shape.embed, TextConfig) else None
    if tokenizer is not None and isinstance(shape.embed, TextConfig) and tokenizer.size > shape.embed.vocabulary:
        raise UserError(
            f"the tokenizer of {name} counts {tokenizer.size:,} entries, its embedding {shape.embed.vocabulary:,}: they are of two models; "
            "put the tokenizer there that the model was trained with"
        )
    past = folder / "provenance.json"
    return Loaded(model.eval(), card, tokenizer, config, read_json(past) if past.is_file() else {"source": str(name)})


def save(loaded: Loaded, folder: str | Path, *, overwrite: bool = False) -> None:
    """Write a folder that this library, transformers and sentence-transformers load."""
    model, kind = loaded.model, family(loaded.model.config.family)
    heads = tuple(model.heads)
    card = loaded.card
    config = {k: v for k, v in loaded.config.items() if k not in ("architecture", "num_classes", "pretrained_cfg", "num_features", "_name_or_path")}
    config |= kind.write(model.config) | {"architectures": [kind.architecture(heads)], "dtype": "float32"}
    if card.labels:
        config["id2label"] = {str(i): label for i, label in enumerate(card.labels)}
        config["label2id"] = {label: i for i, label in enumerate(card.labels)}
        config["problem_type"] = {"many": "multi_label_classification", "number": "regression"}.get(card.kind, "single_label_classification")
    provenance = loaded.provenance | {"unmask": __version__, "torch": torch.__version__}
    files = {name: json.dumps(value, ensure_ascii=False, indent=2) + "\n" for name, value in (("config.json", config), ("provenance.json", provenance))}
    files |= card_files(card, model.config.encoder.width)
    if loaded.tokenizer is not None:
        files |= loaded.tokenizer.files(card.length)
    write_folder(Path(folder), files, named_tensors(model), overwrite=overwrite)


def named_tensors(model: Model) -> dict[str, Tensor]:
    """Every parameter under the name it has in a file."""
    kind = family(model.config.family)
    found: dict[str, Tensor] = {}
    for ours, tensor in model.named_parameters():
        theirs = kind.theirs(ours)
        for name, part in zip(theirs, tensor.chunk(len(theirs)) if len(theirs) > 1 else (tensor,), strict=True):
            trunk = not ours.startswith("heads.")
            found[kind.prefix + name if trunk and len(model.heads) else name] = part
    if not model.config.tied:
        found |= {second: found[first].clone() for second, first in kind.aliases.items() if first in found}
    return found


# ---- where


def locate(name: str | Path) -> Path:
    """A folder (or file) here, else a model of the hub, from its cache or over the network."""
    path = Path(name).expanduser()
    if path.exists():
        return path
    if not isinstance(name, str) or not HUB_NAME.match(name) or name.startswith("."):
        raise UserError(f"there is no folder {name}; give a model folder or a hub id such as owner/name")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        found = Path(snapshot_download(name, allow_patterns=HUB_FILES, etag_timeout=5))
        if not any(found.glob("*.safetensors")):
            found = Path(snapshot_download(name, allow_patterns=[*HUB_FILES, "pytorch_model*.bin"], etag_timeout=5))
        return found
    except HfHubHTTPError as error:
        raise UserError(f"there is no folder {name}, and the hub does not give a model of that name ({type(error).__name__}); check its spelling") from None
    except Exception as error:  # whatever the hub's client and the layers under it raise without a network
        raise UserError(
            f"there is no folder {name}, and the hub could not be reached to look for a model of that name ({type(error).__name__}); "
            "give a folder that is here, or connect to the network"
        ) from None


# ---- what


def _shape(kind: Family, config: Mapping[str, Any], folder: Path) -> ModelConfig:
    try:
        return kind.read(config)
    except KeyError as error:
        raise UserError(f"{folder / 'config.json'} lacks {error.args[0]}; copy it again from where it came") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{folder / 'config.json'} does not describe a model ({error}); copy it again from where it came") from None


def _named(kind: Family, weights: Weights) -> Weights:
    """One spelling for what files spell in several: a prefix or none, LayerNorm's gamma and beta, second names, buffers."""
    weights = kind.foreign(weights)
    found: Weights = {}
    for name, one in weights.items():
        plain = name.removeprefix("module.").removeprefix(kind.prefix)
        plain = re.sub(r"(LayerNorm)\.gamma$", r"\1.weight", plain)
        plain = re.sub(r"(LayerNorm)\.beta$", r"\1.bias", plain)
        found[plain] = one
    for second, first in kind.aliases.items():
        if second in found:
            found[first] = found.pop(second)  # the second is the one transformers computes with, where the two are not tied
    return {name: one for name, one in found.items() if not any(fnmatch.fnmatch(name, pattern) for pattern in kind.buffers)}


def _heads(kind: Family, config: Mapping[str, Any], weights: Weights) -> dict[str, int]:
    """The heads that config.json names, and those whose tensors are there and can be no other's.

    Many a folder says one thing and holds more: bert-base-uncased calls itself a masked-word model, and has next sentence too.
    """
    said = next((kind.architectures[name] for name in config.get("architectures") or () if name in kind.architectures), ())
    owners: dict[str, int] = {}
    for head in kind.heads:
        owners[_bias(kind, head)] = owners.get(_bias(kind, head), 0) + 1
    there = [head for head in kind.heads if _bias(kind, head) in weights and owners[_bias(kind, head)] == 1]
    return {head: _rows(kind, head, weights) for head in dict.fromkeys((*said, *there))}


def _bias(kind: Family, head: str) -> str:
    """The one tensor by which a head is known, a row a label."""
    return kind.theirs(f"heads.{head}.decoder.bias" if head == "words" else f"heads.{head}.out.bias")[0]


def _rows(kind: Family, head: str, weights: Weights) -> int:
    name = _bias(kind, head)
    if name not in weights:
        raise UserError(
            f"config.json names the head {head}, but its weights ({name}) are not in the folder; "
            f"load it with heads={{'{head}': number of labels}} to start that head anew"
        )
    return weights[name].shape[0]


def _carries_pooler(kind: Family, weights: Weights) -> bool:
    try:
        return kind.theirs("pooler.dense.weight")[0] in weights
    except KeyError:
        return False


def _labelled(card: Card, heads: Mapping[str, int], config: Mapping[str, Any], shape: ModelConfig) -> Card:
    """Labels for the head that has some; the length no longer than the positions."""
    count = next((heads[head] for head in ("classify", "tag") if head in heads), 0)
    if count and len(card.labels) != count:
        # Old configs carry a num_labels beside an id2label of another length; the one that fits the weights counts.
        said = {len(card.labels)} if card.labels else set()
        said |= {config["num_labels"]} if isinstance(config.get("num_labels"), int) else set()
        if said and count not in said:
            raise UserError(f"config.json names {', '.join(map(str, sorted(said)))} labels, the head's weights have {count}; correct id2label in config.json")
        card = replace(card, labels=tuple(f"LABEL_{i}" for i in range(count)))
    if not count:
        card = replace(card, labels=())
    if isinstance(shape.embed, TextConfig):
        limits = [limit for limit in (card.length, shape.longest) if limit]
        card = replace(card, length=min(limits) if limits else None)
    return card


# ---- weights into modules


def _fill(model: Model, kind: Family, weights: Weights, *, new: Sequence[str], leave: Sequence[str], where: str, seed: int) -> None:
    """Give every parameter its numbers; what is missing, unused or of another shape is named."""
    used: set[str] = set()
    state: dict[str, Tensor] = {}
    missing: list[str] = []
    for ours, parameter in model.named_parameters():
        theirs = kind.theirs(ours)
        lost = [name for name in theirs if name not in weights]
        missing += [ours] if lost else []
        if not lost:
            state[ours] = _tensor(theirs, weights, tuple(parameter.shape), where)
            used |= set(theirs)
    fresh = _fresh(model, missing, new)
    lost = [kind.theirs(name)[0] for name in missing if name not in fresh]
    if lost:
        raise UserError(f"{where} lacks {_list(lost)}; it is not whole, or config.json describes another model")
    tied = "heads.words.decoder.weight" not in dict(model.named_parameters()) and "words" in model.heads
    if tied and kind.theirs("heads.words.decoder.weight")[0] in weights:
        used.add(_same_as_embedding(kind, weights, where))
    if new:  # other heads than the folder's were asked for: its own stay behind
        leave = [*leave, *(pattern for head in kind.heads for pattern in _patterns(kind, head))]
    unused = sorted(name for name in weights if name not in used and not any(fnmatch.fnmatch(name, pattern) for pattern in leave))
    if unused:
        raise UserError(f"{where} holds weights that nothing here uses: {_list(unused)}; if they may stay behind, say leave={[unused[0]]}")
    _put(model, state, fresh, seed)


def _tensor(names: Sequence[str], weights: Weights, shape: tuple[int, ...], where: str) -> Tensor:
    """One of our parameters, read from the file, in float32."""
    parts = []
    for name in names:
        wanted = (shape[0] // len(names), *shape[1:]) if shape else shape
        _agree(name, weights[name], wanted, where)
        parts.append(weights[name].read().float())
        if not torch.isfinite(parts[-1].sum()) and not torch.isfinite(parts[-1]).all():
            raise UserError(f"{name} in {where} holds numbers that are not finite (NaN or infinite): its training had failed; use an earlier checkpoint")
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _agree(name: str, one: Stored, wanted: tuple[int, ...], where: str) -> None:
    if one.shape != wanted:
        said = " x ".join(map(str, wanted)), " x ".join(map(str, one.shape))
        raise UserError(f"{name} in {where} is {said[1]}, config.json makes it {said[0]}: they are of two models; copy both from one place")


def _fresh(model: Model, missing: Sequence[str], new: Sequence[str]) -> set[str]:
    """The missing parameters that may start anew: a new head's, and its pooler's."""
    heads = {name.split(".")[1] for name in missing if name.startswith("heads.") and name.split(".")[1] in new}
    fresh = {name for name in missing if name.startswith("heads.") and name.split(".")[1] in heads}
    if any(model.heads[head].over == "texts" for head in heads):
        fresh |= {name for name in missing if name.startswith("pooler.")}
    return fresh


def _same_as_embedding(kind: Family, weights: Weights, where: str) -> str:
    """A file may hold the tied matrix twice; were they two matrices, one would be lost in silence."""
    name, words = kind.theirs("heads.words.decoder.weight")[0], kind.theirs("embed.words.weight")[0]
    if not torch.equal(weights[name].read(), weights[words].read()):
        raise UserError(f'{name} in {where} is not the embedding, though config.json ties them; set "tie_word_embeddings": false there')
    return name


def _patterns(kind: Family, head: str) -> list[str]:
    names = [theirs for ours, theirs in kind.names.items() if ours.startswith(f"heads.{head}.")]
    return [f"{name}*" for name in names if isinstance(name, str)]


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
        else:
            setattr(module, last, nn.Parameter(tensor.detach()))
    model.tie()


def _list(names: Iterable[str], most: int = 3) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
