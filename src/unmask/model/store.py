"""A model folder to a model and back: names in files to names here, every weight accounted for by name."""

from __future__ import annotations

import fnmatch
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unmask import __version__
from unmask.errors import UserError, near
from unmask.model.card import Card, Image, card_files, read_card
from unmask.model.embed import ImageConfig, TextConfig
from unmask.model.families import build, family, recognise
from unmask.model.families import families as all_families
from unmask.model.families.base import Family, architectures
from unmask.model.folder import Stored, Weights, read_file, read_json, read_weights, write_folder
from unmask.model.model import Model, ModelConfig, initialise
from unmask.tokenizer import Tokenizer

HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
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

    `heads` asks for these heads, with so many labels each, in place of the folder's own. One that the folder has with as many
    labels keeps its weights; any other is new, drawn from `seed`, and the labels' names are then for you to give.
    `leave` lists patterns of tensors in the file that may stay unused.
    """
    place = locate(name)
    config, weights = _read(place)
    kind = recognise(config)
    weights = _named(kind, weights, place)
    shape = _shape(kind, config, weights, place)
    weights = _joined(kind, weights, shape.tied, place)
    own = _heads(kind, config, weights, strict=heads is None)
    chosen = own if heads is None else _asked(kind, heads, shape)
    new = [head for head, count in chosen.items() if own.get(head) != count]
    shape = replace(shape, heads=tuple(chosen.items()), pooler=_carries_pooler(kind, weights))
    model = _empty(shape, place)
    if heads is not None:
        leave = [*leave, *_others(kind, model, chosen, new)]
    _fill(model, kind, weights, new=new, leave=leave, where=str(name), seed=seed)
    card = _labelled(read_card(place, config), chosen, new, config, shape)
    tokenizer = _tokenizer(place, shape, card.lowercase)
    past = place / "provenance.json"
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
    path = Path(name)
    try:
        if (path := path.expanduser()).exists():
            return path
    except (OSError, RuntimeError):  # too long for a name, or the home of nobody
        pass
    if not isinstance(name, str) or not HUB_NAME.fullmatch(name):
        raise UserError(f"there is no folder {name}; give a model folder or a hub id such as owner/name")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        found = Path(snapshot_download(name, allow_patterns=HUB_FILES, etag_timeout=5))
        if not any(found.glob("*.safetensors")):
            found = Path(snapshot_download(name, allow_patterns=[*HUB_FILES, "pytorch_model*.bin"], etag_timeout=5))
        return found
    except Exception as error:  # whatever the hub's client and the layers under it raise without a network
        if isinstance(error, HfHubHTTPError) and not isinstance(error, LocalEntryNotFoundError):
            said = "the hub does not give a model of that name", "check its spelling"
        else:
            said = "the hub could not be reached to look for a model of that name", "give a folder that is here, or connect to the network"
        raise UserError(f"there is no folder {name}, and {said[0]} ({type(error).__name__}); {said[1]}") from None


# ---- what


def _read(place: Path) -> tuple[dict[str, Any], Weights]:
    """config.json and the weights; of one bare file, what its weights say of themselves."""
    if (place / "config.json").is_file():
        return read_json(place / "config.json"), read_weights(place)
    if place.is_dir():
        raise UserError(f"{place} holds no config.json, so it is no model folder; give the folder that save wrote")
    weights = read_file(place) if place.suffix == ".npz" else {}
    config = next((found for one in all_families() if (found := one.bare(weights))), None)
    if config is None:
        raise UserError(f"{place} is one file and says no shape; give the folder that holds it and its config.json")
    return config, weights


def _shape(kind: Family, config: Mapping[str, Any], weights: Weights, place: Path) -> ModelConfig:
    path = place / "config.json"
    try:
        shape = kind.read(config)
    except KeyError as error:
        raise UserError(f"{path} lacks {error.args[0]}; copy it again from where it came") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} does not describe a model ({error}); copy it again from where it came") from None
    depth = shape.encoder.distinct or shape.encoder.depth
    if depth > len(weights):  # to build a million layers takes an hour
        raise UserError(f"{path} says {depth:,} layers, the weights beside it are {len(weights):,} tensors in all: they are of two models")
    return shape


def _empty(shape: ModelConfig, place: Path) -> Model:
    try:
        with torch.device("meta"):
            return build(shape)
    except RuntimeError as error:  # more numbers than 64 bits count
        raise UserError(f"{place / 'config.json'} describes a model too large ({str(error).splitlines()[0]}); copy it again from where it came") from None


def _named(kind: Family, weights: Weights, where: Path) -> Weights:
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


def _joined(kind: Family, weights: Weights, tied: bool, where: Path) -> Weights:
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


def _heads(kind: Family, config: Mapping[str, Any], weights: Weights, *, strict: bool) -> dict[str, int]:
    """The heads that config.json names, and those whose tensors are there and can be no other's.

    Many a folder says one thing and holds more: bert-base-uncased calls itself a masked-word model, and has next sentence too.
    `strict`: what config.json names must be there.
    """
    said = next((kind.architectures[name] for name in architectures(config) if name in kind.architectures), ())
    owners: dict[str, int] = {}
    for head in kind.heads:
        owners[_bias(kind, head)] = owners.get(_bias(kind, head), 0) + 1
    there = [head for head in kind.heads if _bias(kind, head) in weights and owners[_bias(kind, head)] == 1]
    named = [head for head in dict.fromkeys((*said, *there)) if strict or _bias(kind, head) in weights]
    return {head: _rows(kind, head, weights) for head in named}


def _asked(kind: Family, heads: Mapping[str, int], shape: ModelConfig) -> dict[str, int]:
    """The heads asked for, each with how many rows it has; the words' are the vocabulary, whatever is said."""
    for head, count in heads.items():
        if head not in kind.heads:
            raise UserError(f"there is no head {head!r} for a {shape.family} model{near(head, kind.heads)}")
        if type(count) is not int or count < 1:
            raise UserError(f"a head {head!r} of {count!r} labels cannot be made; ask for 1 or more")
    return {head: shape.embed.vocabulary if head == "words" and isinstance(shape.embed, TextConfig) else count for head, count in heads.items()}


def _others(kind: Family, model: Model, chosen: Iterable[str], new: Iterable[str]) -> list[str]:
    """Where other heads than the folder's were asked for, what of its own stays behind; also a pooler that the new heads don't read."""
    kept = {_bias(kind, head) for head in chosen if head not in new}
    left = [pattern for head in kind.heads if _bias(kind, head) not in kept for pattern in _patterns(kind, head)]
    pooled = any(name.startswith("pooler.") for name, _ in model.named_parameters())
    return left if pooled else [*left, *_patterns(kind, "pooler")]


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
    return math.prod(weights[name].shape)


def _carries_pooler(kind: Family, weights: Weights) -> bool:
    try:
        return kind.theirs("pooler.dense.weight")[0] in weights
    except KeyError:
        return False


def _labelled(card: Card, heads: Mapping[str, int], new: Sequence[str], config: Mapping[str, Any], shape: ModelConfig) -> Card:
    """The card of this very model: labels for the head that has some, a length that its positions allow, pictures that it takes."""
    head = next((head for head in ("classify", "tag") if head in heads), None)
    if head is not None and head in new:  # what the folder says is of the head it came with
        card = replace(card, task=None, labels=_numbered(heads[head]), kind="one", thresholds={})
    elif head is not None and len(card.labels) != heads[head]:
        # Old configs carry a num_labels beside an id2label of another length; the one that fits the weights counts.
        said = {len(card.labels)} if card.labels else set()
        said |= {config["num_labels"]} if isinstance(config.get("num_labels"), int) else set()
        if said and heads[head] not in said:
            raise UserError(f"config.json names {_list(map(str, sorted(said)))} labels, the head's weights have {heads[head]}; correct id2label in config.json")
        card = replace(card, labels=_numbered(heads[head]))
    elif head is None:
        card = replace(card, labels=(), task=None if new else card.task)
    if isinstance(shape.embed, TextConfig):
        limits = [limit for limit in (card.length, shape.longest) if limit]
        return replace(card, length=min(limits) if limits else None)
    if card.image is not None:
        _agreed(card.image, shape.embed)
    return card


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"LABEL_{i}" for i in range(count))


def _agreed(image: Image, embed: ImageConfig) -> None:
    """Pictures may be of another size than the model was trained on, but of whole patches and its channels."""
    if image.channels != embed.channels:
        raise UserError(f"pictures are prepared with {image.channels} channels, the model takes {embed.channels}; correct preprocessor_config.json")
    if any(side % embed.patch for side in image.size):
        size = " x ".join(map(str, image.size))
        raise UserError(f"pictures are prepared as {size}, which patches of {embed.patch} do not divide; correct preprocessor_config.json")


def _tokenizer(place: Path, shape: ModelConfig, lowercase: bool) -> Tokenizer | None:
    if not isinstance(shape.embed, TextConfig):
        return None
    tokenizer = Tokenizer.load(place)
    if tokenizer.size > shape.embed.vocabulary:
        raise UserError(
            f"the tokenizer of {place} counts {tokenizer.size:,} entries, its embedding {shape.embed.vocabulary:,}: they are of two models; "
            "put the tokenizer there that the model was trained with"
        )
    if lowercase:
        tokenizer.lowercase()
    return tokenizer


# ---- weights into modules


def _fill(model: Model, kind: Family, weights: Weights, *, new: Sequence[str], leave: Sequence[str], where: str, seed: int) -> None:
    """Give every parameter its numbers; what is missing, unused or of another shape is named."""
    used: set[str] = set()
    state: dict[str, Tensor] = {}
    missing: list[str] = []
    for ours, parameter in model.named_parameters():
        theirs = kind.theirs(ours)
        anew = ours.startswith("heads.") and ours.split(".")[1] in new
        lost = [name for name in theirs if name not in weights or anew]
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
    unused = sorted(name for name in weights if name not in used and not any(fnmatch.fnmatch(name, pattern) for pattern in leave))
    if unused:
        raise UserError(f"{where} holds weights that nothing here uses: {_list(unused)}; {_why(kind, unused)}")
    _put(model, state, fresh, seed)


def _why(kind: Family, unused: Sequence[str]) -> str:
    owners = [head for head in kind.heads if _bias(kind, head) in unused]
    if len(owners) > 1:
        classes = [name for name, heads in kind.architectures.items() if set(heads) & set(owners)]
        return f"they are a head of some kind; say which in config.json, by one of these names in its list of architectures: {', '.join(classes)}"
    return f"if they may stay behind, say leave={[unused[0]]}"


def _tensor(names: Sequence[str], weights: Weights, shape: tuple[int, ...], where: str) -> Tensor:
    """One of our parameters, read from the file, in float32."""
    parts = []
    for name in names:
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
    if not torch.equal(weights[name].read().float(), weights[words].read().float()):
        raise UserError(f'{name} in {where} is not the embedding, though config.json ties them; set "tie_word_embeddings": false there')
    return name


def _patterns(kind: Family, owner: str) -> list[str]:
    """What a head's tensors are called in files, or the pooler's."""
    names = [theirs for ours, theirs in kind.names.items() if ours.removeprefix("heads.").startswith(f"{owner}.")]
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
