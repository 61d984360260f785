"""What a folder answers, and how: `task.json`, and the files other libraries keep the same facts in.

Read from both (task.json counts first), written to both, so that a folder means the same everywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from unmask.config import fitted, read_json, read_list
from unmask.errors import UserError, near
from unmask.model.folder import inside
from unmask.model.heads import POOLINGS

LEGACY_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
TRANSFORMERS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")  # one of them is in the name of a Transformer's file
RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}  # Pillow's numbers
PROBLEMS = {"multi_label_classification": "many", "regression": "number", "single_label_classification": "one"}


@dataclass(frozen=True)
class Image:
    """How a picture becomes pixels: resize, crop, scale to 0..1, mean and std."""

    size: tuple[int, int] = (224, 224)
    channels: int = 3
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    resample: int = 2  # Pillow's number: 2 bilinear, 3 bicubic
    shorter: int = 0  # resize the shorter side to this, then crop the middle
    both: tuple[int, int] = (0, 0)  # resize to this height and width, then crop the middle; where neither is said, resize to `size`


@dataclass(frozen=True)
class Card:
    task: str | None = None
    labels: tuple[str, ...] = ()
    kind: str = "one"  # of the labels: one, many, or a number (regression)
    thresholds: Mapping[str, float] = field(default_factory=dict)
    length: int | None = None  # in pieces, the special ones included
    windows: int = 128  # pieces by which the windows over a longer text overlap
    pooling: tuple[str, ...] = ()
    normalise: bool = False
    include_prompt: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt: str | None = None  # the one used where none is named
    similarity: str | None = None  # by which sentence-transformers compares two vectors
    lowercase: bool = False  # the text, before it reaches the tokenizer
    image: Image | None = None

    def json(self) -> dict[str, Any]:
        """Only what differs from the default."""
        plain = asdict(Card())
        return {name: value for name, value in asdict(self).items() if value != plain[name]}


def read_card(folder: Path, trunk: Path, config: Mapping[str, Any]) -> Card:
    """`trunk` is where config.json lies: the folder itself, or in an old one of sentence-transformers a folder in it."""
    card = _from_config(trunk / "config.json", config)
    if _raw(folder, config) and len(card.labels) <= 1:
        card = replace(card, kind="number")
    if (trunk / "tokenizer_config.json").is_file():
        limit = read_json(trunk / "tokenizer_config.json").get("model_max_length")
        if isinstance(limit, int) and 0 < limit < 10**9:  # the usual "no limit" is 10**30
            card = replace(card, length=limit)
    if (folder / "preprocessor_config.json").is_file():
        card = replace(card, image=_image(folder / "preprocessor_config.json", card.image or Image()))
    if (folder / "modules.json").is_file():
        card = _sentences(folder, trunk, card)
    if (folder / "task.json").is_file():
        card = fitted(card, folder / "task.json", read_json(folder / "task.json"))
    _sound(card, folder)
    return card


def card_files(card: Card, width: int) -> dict[str, str]:
    """The same facts as sentence-transformers and transformers keep them, and task.json."""
    files: dict[str, Any] = {"task.json": card.json()}
    if card.image is not None:
        files["preprocessor_config.json"] = _image_json(card.image)
    if card.pooling:
        modules = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] if card.normalise else [])]
        files["modules.json"] = [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"} for i, (path, name) in enumerate(modules)
        ]
        pooling: dict[str, Any] = {key: mode in card.pooling for key, mode in LEGACY_POOLINGS.items()}
        if card.pooling != tuple(mode for mode in LEGACY_POOLINGS.values() if mode in card.pooling):
            pooling = {"pooling_mode": list(card.pooling)}  # flags have one order only; an older sentence-transformers stops at this word
        files["1_Pooling/config.json"] = {"word_embedding_dimension": width, **pooling, "include_prompt": card.include_prompt}
        if card.normalise:
            files["2_Normalize/config.json"] = {}
        files["sentence_bert_config.json"] = {"max_seq_length": card.length, "do_lower_case": card.lowercase}
        similarity = {"similarity_fn_name": card.similarity} if card.similarity else {}
        files["config_sentence_transformers.json"] = {"prompts": dict(card.prompts), "default_prompt_name": card.prompt, **similarity}
    return {name: json.dumps(value, ensure_ascii=False, indent=2) + "\n" for name, value in files.items()}


def _from_config(path: Path, config: Mapping[str, Any]) -> Card:
    timm = config.get("pretrained_cfg", config if "architecture" in config else None)
    if timm is not None and not isinstance(timm, dict):
        raise UserError(f"{path} should hold an object under pretrained_cfg; copy it again from where it came")
    names = config.get("id2label") or config.get("label_names") or (timm or {}).get("label_names") or {}
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict) or sorted(map(str, names)) != sorted(map(str, range(len(names)))):
        raise UserError(f"{path} does not number its labels from 0 on; correct id2label there, 0 to the number of labels less one")
    problem = config.get("problem_type")
    card = Card(labels=_apart([str(name) for _, name in sorted(names.items(), key=lambda item: int(item[0]))]))
    card = replace(card, kind=PROBLEMS.get(problem, "one") if isinstance(problem, str) else "one")
    return card if timm is None else replace(card, image=_timm_image(path, timm))


def _raw(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether a CrossEncoder of sentence-transformers says that its one logit is the score as it is; each age says so elsewhere."""
    own, path = config.get("sentence_transformers"), folder / "config_sentence_transformers.json"
    said = [config.get("sbert_ce_default_activation_function"), own.get("activation_fn") if isinstance(own, dict) else None]
    said += [read_json(path).get("activation_fn")] if path.is_file() else []
    return any(isinstance(one, str) and one.endswith(".Identity") for one in said)


def _apart(labels: list[str]) -> tuple[str, ...]:
    """Answers are kept by label, and ImageNet calls two of its thousand classes `crane`: the second gets its number."""
    return tuple(f"{label} ({i})" if label in labels[:i] else label for i, label in enumerate(labels))


def _sentences(folder: Path, trunk: Path, card: Card) -> Card:
    """sentence-transformers: the modules in their order, each one that we know."""
    for module in read_list(folder / "modules.json"):
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        path = inside(folder, str(module.get("path", ""))) / "config.json"
        if kind == "Pooling":
            settings = read_json(path)
            modes = settings.get("pooling_mode") or [mode for key, mode in LEGACY_POOLINGS.items() if settings.get(key)] or "mean"
            modes = [modes] if isinstance(modes, str) else modes
            card = fitted(card, path, {"pooling": modes, "include_prompt": settings.get("include_prompt", True)})
        elif kind == "Normalize":
            card = replace(card, normalise=True)
        elif kind != "Transformer":
            raise UserError(f"{folder / 'modules.json'} asks for a {kind} module, which is not known here; known: Transformer, Pooling, Normalize")
    for path in [path for name in TRANSFORMERS if (path := trunk / f"sentence_{name}_config.json").is_file()][:1]:
        settings = read_json(path)
        card = fitted(card, path, {"length": settings.get("max_seq_length") or card.length, "lowercase": bool(settings.get("do_lower_case"))})
    path = folder / "config_sentence_transformers.json"
    if path.is_file():
        settings = read_json(path)
        card = fitted(
            card,
            path,
            {"prompts": settings.get("prompts") or {}, "prompt": settings.get("default_prompt_name"), "similarity": settings.get("similarity_fn_name")},
        )
    return card


# ---- pictures


def _image(path: Path, image: Image) -> Image:
    """An image processor's settings: `size` is a number, {"height", "width"} or {"shortest_edge"}, by its age."""
    settings = read_json(path)
    for name, known in (("do_resize", True), ("do_rescale", True), ("rescale_factor", 1 / 255)):
        if settings.get(name) is not None and settings[name] != known:
            raise UserError(f"{path} says {name} is {settings[name]}, which is not known here; only {known} is")
    kind = str(settings.get("image_processor_type") or settings.get("feature_extractor_type") or "")
    usual = 3 if kind.startswith(("DeiT", "ConvNext")) else image.resample
    plain = settings.get("do_normalize") is False
    mean, std = settings.get("image_mean") or image.mean, settings.get("image_std") or image.std
    found = fitted(image, path, {"mean": mean, "std": std, "resample": settings.get("resample", usual)})
    found = replace(found, channels=len(found.mean))
    found = replace(found, mean=(0.0,) * found.channels, std=(1.0,) * found.channels) if plain else found
    return _resnets(path, settings, found) if kind.startswith("ConvNext") else _resized(path, settings, found)


def _resized(path: Path, settings: Mapping[str, Any], image: Image) -> Image:
    size = image.size if settings.get("size") is None else settings["size"]
    cropped = size if settings.get("crop_size") is None else settings["crop_size"]
    if isinstance(size, dict) and "shortest_edge" in size:
        return replace(fitted(image, path, {"shorter": size["shortest_edge"]}), size=_sides(path, cropped))
    sides = _sides(path, size)
    if settings.get("do_center_crop") and _sides(path, cropped) != sides:
        return replace(image, size=_sides(path, cropped), both=sides)
    return replace(image, size=sides)


def _resnets(path: Path, settings: Mapping[str, Any], image: Image) -> Image:
    """ConvNeXT's image processor, which ResNets are published with: the shorter side to size / crop_pct, then the middle; from 384 on, both sides."""
    side, _ = _sides(path, settings.get("size", 384))
    part = settings.get("crop_pct", 224 / 256)
    if type(part) not in (int, float) or not 0 < part <= 1:
        raise UserError(f"{path} says crop_pct is {part!r}, it should be a number from 0 to 1; copy it again from where it came")
    return replace(image, size=(side, side), shorter=int(side / part) if side < 384 else 0)


def _sides(path: Path, size: Any) -> tuple[int, int]:
    if isinstance(size, dict):
        size = [size.get("height", size.get("shortest_edge")), size.get("width", size.get("shortest_edge"))]
    return fitted(Image(), path, {"size": [size, size] if isinstance(size, int) else size}).size


def _timm_image(path: Path, settings: Mapping[str, Any]) -> Image:
    """timm's `pretrained_cfg`: the shorter side to floor(size / crop_pct), then the middle of it."""
    shape = settings.get("input_size", [3, 224, 224])
    name, mode = settings.get("interpolation", "bilinear"), settings.get("crop_mode", "center")
    if name not in RESAMPLE:
        raise UserError(f"{path} resizes pictures by {name!r}{near(str(name), RESAMPLE)}")
    fields = {"size": shape[1:], "channels": shape[0], "mean": settings.get("mean", [0.5] * 3), "std": settings.get("std", [0.5] * 3)}
    image = fitted(Image(resample=RESAMPLE[name]), path, fields)
    part = settings.get("crop_pct") or 0.875  # timm's own where nothing is said
    if type(part) not in (int, float) or not 0 < part <= 1:
        raise UserError(f"{path} says crop_pct is {part!r}, it should be a number from 0 to 1; copy it again from where it came")
    if mode == "squash" and part == 1:
        return image
    if mode != "center" or image.size[0] != image.size[1]:
        raise UserError(f"{path} crops pictures in a way that is not known here (crop_mode {mode!r}, size {image.size}); known: the middle of a square")
    return replace(image, shorter=math.floor(image.size[0] / part))


def _image_json(image: Image) -> dict[str, Any]:
    height, width = image.size
    first = {"shortest_edge": image.shorter} if image.shorter else {"height": image.both[0], "width": image.both[1]}
    cropped = {"size": first, "do_center_crop": True, "crop_size": {"height": height, "width": width}}
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        **(cropped if image.shorter or any(image.both) else {"size": {"height": height, "width": width}}),
        "resample": image.resample,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(image.mean),
        "image_std": list(image.std),
    }


def _sound(card: Card, folder: Path) -> None:
    """Values that no type shows to be wrong."""
    image = card.image or Image()
    for good, said in (
        (card.kind in PROBLEMS.values(), f"kind {card.kind!r} is none of {', '.join(PROBLEMS.values())}"),
        (card.length is None or card.length > 0, f"a length of {card.length} is none"),
        (card.windows >= 0, f"windows cannot overlap by {card.windows}"),
        (set(card.pooling) <= set(POOLINGS), f"pooling {', '.join(card.pooling)} is not known; known: {', '.join(POOLINGS)}"),
        (min(image.size) > 0 and image.shorter >= 0, f"pictures cannot be {image.size[0]} x {image.size[1]} from {image.shorter}"),
        (image.both == (0, 0) or (min(image.both) > 0 and not image.shorter), f"pictures cannot be resized to {image.both[0]} x {image.both[1]}"),
        (image.resample in RESAMPLE.values(), f"resample {image.resample} is none of Pillow's numbers, 0 to 5"),
        (len(image.mean) == len(image.std) == image.channels, f"mean and std are of {len(image.mean)} and {len(image.std)} channels, not {image.channels}"),
        (min(image.std, default=0) > 0, "a std of a picture must be above 0"),
    ):
        if not good:
            raise UserError(f"{folder} says how it answers, but {said}; correct task.json or the file that says so")
