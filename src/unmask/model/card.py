"""What a folder answers, and how: `task.json`, and the files other libraries keep the same facts in.

Read from both (task.json counts first), written to both, so that a folder means the same everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from unmask.errors import UserError, near
from unmask.model.folder import inside, read_json, read_list

LEGACY_POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
PROBLEMS = {"multi_label_classification": "many", "regression": "number", "single_label_classification": "one"}


@dataclass(frozen=True)
class Image:
    """How a picture becomes pixels: resize (its shorter side, where a crop follows), crop, scale to 0..1, mean and std."""

    size: tuple[int, int] = (224, 224)
    channels: int = 3
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    resample: int = 2  # Pillow's number: 2 bilinear, 3 bicubic
    shorter: int = 0  # resize the shorter side to this, then crop the middle; 0: resize both sides


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
    lowercase: bool = False  # the text, before it reaches the tokenizer
    image: Image | None = None

    def json(self) -> dict[str, Any]:
        """Only what differs from the default."""
        plain = asdict(Card())
        return {name: value for name, value in asdict(self).items() if value != plain[name]}


def read_card(folder: Path, config: Mapping[str, Any]) -> Card:
    card = _from_config(config)
    if (folder / "tokenizer_config.json").is_file():
        limit = read_json(folder / "tokenizer_config.json").get("model_max_length")
        if isinstance(limit, int) and 0 < limit < 10**9:  # the usual "no limit" is 10**30
            card = replace(card, length=limit)
    if (folder / "preprocessor_config.json").is_file():
        card = replace(card, image=_image(read_json(folder / "preprocessor_config.json"), card.image or Image()))
    if (folder / "modules.json").is_file():
        card = _sentences(folder, card)
    if (folder / "task.json").is_file():
        card = _overlay(card, folder / "task.json")
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
        pooling = {key: mode in card.pooling for key, mode in LEGACY_POOLINGS.items()}
        files["1_Pooling/config.json"] = {"word_embedding_dimension": width, **pooling, "include_prompt": card.include_prompt}
        if card.normalise:
            files["2_Normalize/config.json"] = {}
        files["sentence_bert_config.json"] = {"max_seq_length": card.length, "do_lower_case": card.lowercase}
        files["config_sentence_transformers.json"] = {"prompts": dict(card.prompts), "default_prompt_name": card.prompt}
    return {name: json.dumps(value, ensure_ascii=False, indent=2) + "\n" for name, value in files.items()}


def _from_config(config: Mapping[str, Any]) -> Card:
    names = config.get("id2label") or {}
    labels = tuple(str(names[key]) for key in sorted(names, key=int)) if isinstance(names, dict) else tuple(map(str, names))
    return Card(labels=labels, kind=PROBLEMS.get(config.get("problem_type") or "", "one"))


def _sentences(folder: Path, card: Card) -> Card:
    """sentence-transformers: the modules in their order, each one that we know."""
    for module in read_list(folder / "modules.json"):
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        path = inside(folder, str(module.get("path", "")))
        if kind == "Pooling":
            settings = read_json(path / "config.json")
            modes = settings.get("pooling_mode") or [mode for key, mode in LEGACY_POOLINGS.items() if settings.get(key)] or "mean"
            card = replace(card, pooling=(modes,) if isinstance(modes, str) else tuple(modes), include_prompt=settings.get("include_prompt", True))
        elif kind == "Normalize":
            card = replace(card, normalise=True)
        elif kind != "Transformer":
            raise UserError(f"{folder / 'modules.json'} asks for a {kind} module, which is not known here; known: Transformer, Pooling, Normalize")
    if (folder / "sentence_bert_config.json").is_file():
        settings = read_json(folder / "sentence_bert_config.json")
        card = replace(card, length=settings.get("max_seq_length") or card.length, lowercase=bool(settings.get("do_lower_case")))
    if (folder / "config_sentence_transformers.json").is_file():
        settings = read_json(folder / "config_sentence_transformers.json")
        card = replace(card, prompts=settings.get("prompts") or {}, prompt=settings.get("default_prompt_name"))
    return card


def _image(settings: Mapping[str, Any], image: Image) -> Image:
    """An image processor's settings: `size` is a number, {"height", "width"} or {"shortest_edge"}, by its age."""

    def sides(size: Any) -> tuple[int, int]:
        if isinstance(size, dict):
            return (size["height"], size["width"]) if "height" in size else (size["shortest_edge"], size["shortest_edge"])
        return (size, size) if isinstance(size, int) else (size[0], size[1])

    size = settings.get("size", image.size)
    shorter = 0
    if settings.get("do_center_crop") or (isinstance(size, dict) and "shortest_edge" in size):
        shorter = sides(size)[0]
        size = settings.get("crop_size", size)
    plain = settings.get("do_normalize") is False
    mean, std = settings.get("image_mean", image.mean), settings.get("image_std", image.std)
    return replace(
        image,
        size=sides(size),
        channels=len(mean),
        mean=(0.0,) * len(mean) if plain else tuple(mean),
        std=(1.0,) * len(std) if plain else tuple(std),
        resample=settings.get("resample", image.resample),
        shorter=shorter,
    )


def _image_json(image: Image) -> dict[str, Any]:
    height, width = image.size
    cropped = {"size": {"shortest_edge": image.shorter}, "do_center_crop": True, "crop_size": {"height": height, "width": width}}
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        **(cropped if image.shorter else {"size": {"height": height, "width": width}}),
        "resample": image.resample,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(image.mean),
        "image_std": list(image.std),
    }


def _overlay(card: Card, path: Path) -> Card:
    found = read_json(path)
    known = asdict(card)
    for name in found:
        if name not in known:
            raise UserError(f"{path} has a field {name!r} that is not known{near(name, known)}")
    if isinstance(found.get("image"), dict):
        image: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in found["image"].items()}
        found["image"] = Image(**image)
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
    return replace(card, **fields)
