"""A model folder to a model and back: names in files to names here, every weight accounted for by name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from unmask import __version__
from unmask.config import read_json, read_list
from unmask.errors import UserError, near
from unmask.model.card import Card, Image, card_files, read_card
from unmask.model.embed import ImageConfig, TextConfig
from unmask.model.families import build, family, recognise
from unmask.model.families import families as all_families
from unmask.model.families.base import Family, architectures, known_by
from unmask.model.folder import Weights, inside, read_file, read_weights, write_folder
from unmask.model.hub import locate
from unmask.model.model import Model, ModelConfig
from unmask.model.weights import fill, joined, listed, named, named_tensors, patterns
from unmask.tokenizer import Tokenizer

# What a config.json may say that is no longer so once the folder is written anew: timm's own, another dtype, other labels.
STALE = set("architecture num_classes pretrained_cfg num_features _name_or_path torch_dtype quantization_config auto_map".split())
STALE |= {"id2label", "label2id", "num_labels", "problem_type"}
FIXED = {"next": 2, "spans": 2, "choice": 1, "replaced": 1}


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
    """Read a model folder (or a hub id, or one bare file: a .npz of ViT, a .pth of torchvision's ResNet).

    `heads` asks for these heads, with so many labels each, in place of the folder's own. One that the folder has with as many
    labels keeps its weights; any other is new, drawn from `seed`, and the labels' names are then for you to give.
    `leave` lists patterns of tensors in the file that may stay unused.
    """
    leave = [leave] if isinstance(leave, str) else leave
    home = locate(name)
    place = _trunk(home)
    config, weights = _read(place)
    kind = recognise(config)
    weights = named(kind, weights, place)
    shape = _shape(kind, config, weights, place)
    weights = joined(kind, weights, shape.tied, place)
    own = _heads(kind, config, weights, shape, strict=heads is None)
    chosen = own if heads is None else _asked(kind, heads, shape)
    new = [head for head, count in chosen.items() if own.get(head) != count]
    shape = replace(shape, heads=tuple(chosen.items()), pooler=heads is None and _carries_pooler(kind, weights))
    model = _empty(shape, place)
    if heads is not None:
        leave = [*leave, *_others(kind, model, chosen, new)]
    fill(model, kind, weights, new=new, leave=leave, where=str(name), seed=seed)
    card = _labelled(read_card(home, place, config), chosen, new, config, shape)
    tokenizer = _tokenizer(place, shape, card.lowercase)
    past = home / "provenance.json"
    return Loaded(model.eval(), card, tokenizer, config, read_json(past) if past.is_file() else {"source": str(name)})


def save(loaded: Loaded, folder: str | Path, *, overwrite: bool = False) -> None:
    """Write a folder that this library, transformers and sentence-transformers load."""
    model, kind = loaded.model, family(loaded.model.config.family)
    if any(p.dtype != torch.float32 for p in model.parameters()):
        raise UserError("this model was loaded in bf16, and saving it would lose digits; load it with precision='float32' to save it")
    card = loaded.card
    config = {name: value for name, value in loaded.config.items() if name not in STALE}
    config |= kind.write(model.config) | {"architectures": [kind.architecture(model.config)], "dtype": "float32"}
    if card.labels:
        config["id2label"] = {str(i): label for i, label in enumerate(card.labels)}
        config["label2id"] = {label: i for i, label in enumerate(card.labels)}
        problem = {"many": "multi_label_classification", "number": "regression"}.get(card.kind, "single_label_classification")
        if card.kind == "number" and len(card.labels) == 1:
            config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}  # its CrossEncoder would take a sigmoid
        config |= {"problem_type": problem} if card.kind != "one" or len(card.labels) > 1 else {}  # one label alone: a reranker, which none of these is
    provenance = loaded.provenance | {"unmask": __version__, "torch": torch.__version__}
    files = {name: json.dumps(value, ensure_ascii=False, indent=2) + "\n" for name, value in (("config.json", config), ("provenance.json", provenance))}
    files |= card_files(card, model.config.encoder.width)
    if loaded.tokenizer is not None:
        files |= loaded.tokenizer.files(card.length, segments=getattr(model.config.embed, "segments", 0) > 0)
    write_folder(Path(folder), files, named_tensors(model), overwrite=overwrite)


def _trunk(home: Path) -> Path:
    """Where config.json and the weights lie: in old folders of sentence-transformers, in a folder of their own."""
    if (home / "config.json").is_file() or not (home / "modules.json").is_file():
        return home
    paths = [str(module.get("path", "")) for module in read_list(home / "modules.json") if str(module.get("type", "")).endswith("Transformer")]
    return inside(home, paths[0]) if paths else home


def _read(place: Path) -> tuple[dict[str, Any], Weights]:
    """config.json and the weights; of one bare file, what its weights say of themselves."""
    if (place / "config.json").is_file():
        return read_json(place / "config.json"), read_weights(place)
    if place.is_dir():
        raise UserError(f"{place} holds no config.json, so it is no model folder; give the folder that save wrote")
    weights = read_file(place) if place.suffix in (".npz", ".pth", ".pt", ".bin", ".safetensors") else {}
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
    if shape.encoder.layers > len(weights):  # to build a million layers takes an hour
        raise UserError(f"{path} says {shape.encoder.layers:,} layers, the weights beside it are {len(weights):,} tensors in all: they are of two models")
    return shape


def _empty(shape: ModelConfig, place: Path) -> Model:
    try:
        with torch.device("meta"):
            return build(shape)
    except RuntimeError as error:  # more numbers than 64 bits count
        raise UserError(f"{place / 'config.json'} describes a model too large ({str(error).splitlines()[0]}); copy it again from where it came") from None


def _heads(kind: Family, config: Mapping[str, Any], weights: Weights, shape: ModelConfig, *, strict: bool) -> dict[str, int]:
    """The heads that config.json names, and those whose tensors are there and can be no other's.

    Many a folder says one thing and holds more: bert-base-uncased calls itself a masked-word model, and has next sentence too.
    `strict`: what config.json names must be there.
    """
    said = next((kind.architectures[name] for name in architectures(config) if name in kind.architectures), ())
    owners: dict[str, int] = {}
    for head in kind.heads:
        owners[known_by(kind, head)] = owners.get(known_by(kind, head), 0) + 1
    there = [head for head in kind.heads if known_by(kind, head) in weights and owners[known_by(kind, head)] == 1]
    found = [head for head in dict.fromkeys((*said, *there)) if strict or known_by(kind, head) in weights]
    return {head: _rows(kind, head, weights, shape) for head in found}


def _asked(kind: Family, heads: Mapping[str, int], shape: ModelConfig) -> dict[str, int]:
    """The heads asked for, each with how many rows it has; the words' are the vocabulary, whatever is said."""
    for head, count in heads.items():
        if head not in kind.heads:
            raise UserError(f"there is no head {head!r} for a {shape.family} model{near(head, kind.heads)}")
        if type(count) is not int or count < 1:
            raise UserError(f"a head {head!r} of {count!r} labels cannot be made; ask for 1 or more")
        if count != FIXED.get(head, count):
            raise UserError(f"the head {head} gives {FIXED[head]} numbers, not {count}; ask for heads={{'{head}': {FIXED[head]}}}")
    shared = [(one, other) for one in heads for other in heads if one < other and set(patterns(kind, one)) & set(patterns(kind, other))]
    if shared:
        raise UserError(f"the heads {shared[0][0]} and {shared[0][1]} have one name in files, so a folder holds one of them; ask for one")
    return {head: shape.embed.vocabulary if head == "words" and isinstance(shape.embed, TextConfig) else count for head, count in heads.items()}


def _others(kind: Family, model: Model, chosen: Iterable[str], new: Iterable[str]) -> list[str]:
    """Where other heads than the folder's were asked for, what of its own stays behind; also a pooler that the new heads don't read."""
    kept = {known_by(kind, head) for head in chosen if head not in new}
    left = [pattern for head in kind.heads if known_by(kind, head) not in kept for pattern in patterns(kind, head)]
    pooled = any(name.startswith("pooler.") for name, _ in model.named_parameters())
    return left if pooled else [*left, *patterns(kind, "pooler")]


def _rows(kind: Family, head: str, weights: Weights, shape: ModelConfig) -> int:
    name = known_by(kind, head)
    if name not in weights:
        raise UserError(
            f"config.json names the head {head}, but its weights ({name}) are not in the folder; "
            f"load it with heads={{'{head}': number of labels}} to start that head anew"
        )
    if head == "words" and isinstance(shape.embed, TextConfig):
        return shape.embed.vocabulary
    count = (*weights[name].shape, 1)[0]
    if head in FIXED and count != FIXED[head]:
        raise UserError(f"the head {head} gives {FIXED[head]} numbers, but {name} in the folder has {count} rows; it is of another kind")
    return count


def _carries_pooler(kind: Family, weights: Weights) -> bool:
    return "pooler.dense" in kind.names and known_by(kind, "pooler") in weights


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
            raise UserError(
                f"config.json names {listed(map(str, sorted(said)))} labels, the head's weights have {heads[head]}; correct id2label in config.json"
            )
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
    if not embed.takes(image.size):
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
    if 1 < shape.embed.segments < tokenizer.segments:
        raise UserError(
            f"the tokenizer of {place} tells {tokenizer.segments} segments apart, its embedding {shape.embed.segments}: they are of two models; "
            "put the tokenizer there that the model was trained with"
        )
    if lowercase:
        tokenizer.lowercase()
    return tokenizer
