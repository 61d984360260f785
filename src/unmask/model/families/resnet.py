"""ResNet (He et al. 2015), 18 to 152: the CNN that ViT is measured against. Loads transformers', timm's and torchvision's weights.

It is no encoder of tokens: maps of numbers go through stages of blocks, and only what leaves becomes rows, one a place of the map.
So it shares heads, folders and answers with the others, and nothing inside.
Letters: B images, C channels, H and W the height and width of a map.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from unmask.errors import UserError, near
from unmask.model import heads
from unmask.model.embed import ImageConfig
from unmask.model.encoder import ACTIVATIONS
from unmask.model.families.base import Family, Names, flag, text, whole
from unmask.model.folder import Weights
from unmask.model.layout import Layout
from unmask.model.model import Model, ModelConfig, initialise


@dataclass(frozen=True)
class Stages:
    """The shape of a ResNet; what stands in the fields is transformers' own."""

    depths: tuple[int, ...]  # blocks of each stage
    widths: tuple[int, ...]  # channels that leave each stage
    bottleneck: bool
    stem: int = 64
    activation: str = "relu"
    early: bool = False  # the first stage halves its map too
    narrow_first: bool = False  # a bottleneck halves in its first convolution (as in the paper), not in its second (as everybody since)

    def __post_init__(self) -> None:
        if len(self.depths) != len(self.widths) or not self.depths:
            raise ValueError(f"{len(self.depths)} depths and {len(self.widths)} widths of stages do not agree")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation {self.activation!r} is none of {', '.join(ACTIVATIONS)}")

    @property
    def width(self) -> int:
        return self.widths[-1]

    @property
    def depth(self) -> int:
        return len(self.depths)

    @property
    def layers(self) -> int:
        return sum(self.depths)

    def __str__(self) -> str:
        kind = "bottleneck" if self.bottleneck else "basic"
        return f"stages of {', '.join(map(str, self.depths))} {kind} blocks, {', '.join(map(str, self.widths))} channels wide"


class Convolution(nn.Module):
    """A convolution without a bias, and the batch norm that brings one."""

    def __init__(self, inner: int, outer: int, side: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, side, stride, padding=side // 2, bias=False)
        self.norm = nn.BatchNorm2d(outer)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class Stem(nn.Module):
    """(B, C, H, W) -> a quarter of the height and width."""

    def __init__(self, channels: int, config: Stages) -> None:
        super().__init__()
        self.convolution = Convolution(channels, config.stem, 7, 2)
        self.activation = ACTIVATIONS[config.activation]
        self.pool = nn.MaxPool2d(3, 2, 1)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.pool(self.activation(self.convolution(pixels)))


class Block(nn.Module):
    """Two or three convolutions, added to what came in (figure 5)."""

    def __init__(self, config: Stages, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        if config.bottleneck:
            narrow, first = outer // 4, stride if config.narrow_first else 1
            parts = [Convolution(inner, narrow, 1, first), Convolution(narrow, narrow, 3, stride // first), Convolution(narrow, outer, 1)]
        else:
            parts = [Convolution(inner, outer, 3, stride), Convolution(outer, outer, 3)]
        self.convolutions = nn.ModuleList(parts)
        self.shortcut = Convolution(inner, outer, 1, stride) if inner != outer or stride != 1 else nn.Identity()
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        inner, last = x, len(self.convolutions) - 1
        for i, convolution in enumerate(self.convolutions):
            inner = convolution(inner) if i == last else self.activation(convolution(inner))
        return self.activation(inner + self.shortcut(x))


class Tower(nn.Module):
    """Stage after stage, each with half the map and twice the channels."""

    def __init__(self, config: Stages) -> None:
        super().__init__()
        self.config = config
        stages, inner = [], config.stem
        for i, (depth, outer) in enumerate(zip(config.depths, config.widths, strict=True)):
            strides = [2 if i or config.early else 1] + [1] * (depth - 1)
            stages.append(nn.Sequential(*(Block(config, inner if n == 0 else outer, outer, stride) for n, stride in enumerate(strides))))
            inner = outer
        self.stages = nn.ModuleList(stages)

    def forward(self, x: Tensor, positions: Tensor | None, layout: Layout) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return layout.lay(_rows(x))

    def states(self, x: Tensor, positions: Tensor | None, layout: Layout) -> Iterator[Tensor]:
        """What enters the first stage, and what leaves each one, as rows; no two of one shape."""
        yield layout.lay(_rows(x))
        for stage in self.stages:
            x = stage(x)
            yield layout.lay(_rows(x))


def _rows(x: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, H * W, C)"""
    return x.flatten(2).mT


class Mean(nn.Module):
    """One linear layer over the mean of all places."""

    over: heads.Over = "texts"

    def __init__(self, width: int, labels: int) -> None:
        super().__init__()
        self.out = nn.Linear(width, labels)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.out(heads.mean(x, layout))


def _shape(bottleneck: bool, *depths: int) -> ModelConfig:
    widths = (256, 512, 1024, 2048) if bottleneck else (64, 128, 256, 512)
    return ModelConfig("resnet", ImageConfig(patch=32, extra=0, partial=True), Stages(depths, widths, bottleneck), pooler=False)


class ResNet(Family):
    shapes: ClassVar[Mapping[str, ModelConfig]] = {
        "18": _shape(False, 2, 2, 2, 2),
        "34": _shape(False, 3, 4, 6, 3),
        "50": _shape(True, 3, 4, 6, 3),
        "101": _shape(True, 3, 4, 23, 3),
        "152": _shape(True, 3, 8, 36, 3),
    }
    prefix: ClassVar[str] = "resnet."
    architectures: ClassVar[Mapping[str, tuple[str, ...]]] = {"ResNetModel": (), "ResNetForImageClassification": ("classify",)}
    names: ClassVar[Names] = {
        "embed.convolution.conv": "embedder.embedder.convolution",
        "embed.convolution.norm": "embedder.embedder.normalization",
        "encoder.stages.{}.{}.convolutions.{}.conv": "encoder.stages.{}.layers.{}.layer.{}.convolution",
        "encoder.stages.{}.{}.convolutions.{}.norm": "encoder.stages.{}.layers.{}.layer.{}.normalization",
        "encoder.stages.{}.{}.shortcut.conv": "encoder.stages.{}.layers.{}.shortcut.convolution",
        "encoder.stages.{}.{}.shortcut.norm": "encoder.stages.{}.layers.{}.shortcut.normalization",
        "heads.classify.out": "classifier.1",
    }

    def trunk(self, config: ModelConfig) -> tuple[nn.Module, nn.Module]:
        assert isinstance(config.embed, ImageConfig)
        assert isinstance(config.encoder, Stages)
        return Stem(config.embed.channels, config.encoder), Tower(config.encoder)

    def head(self, name: str, config: ModelConfig, labels: int) -> nn.Module:
        return {"classify": Mean(config.encoder.width, labels)}[name]

    @torch.no_grad()
    def start(self, model: Model, draw: torch.Generator) -> None:
        """As He et al. 2015 have it (Delving deep into rectifiers): normal, wide enough that what leaves a layer is as wide as what enters."""
        initialise(model, draw)
        for part in model.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu", generator=draw)
            elif isinstance(part, nn.BatchNorm2d):
                part.reset_parameters()

    def read(self, config: Mapping[str, Any]) -> ModelConfig:
        if "architecture" in config:
            return _timm_shape(config)
        kind, depths = text(config, "layer_type", "bottleneck"), _list(config, "depths", [3, 4, 6, 3])
        if kind not in ("basic", "bottleneck"):
            raise UserError(f"config.json says layer_type is {kind!r}; it is basic or bottleneck")
        stages = Stages(
            depths,
            _list(config, "hidden_sizes", [256, 512, 1024, 2048]),
            bottleneck=kind == "bottleneck",
            stem=whole(config, "embedding_size", 64),
            activation=text(config, "hidden_act", "relu"),
            early=flag(config, "downsample_in_first_stage", False),
            narrow_first=flag(config, "downsample_in_bottleneck", False),
        )
        return ModelConfig("resnet", _embed(stages, whole(config, "num_channels", 3)), stages, pooler=False)

    def write(self, config: ModelConfig) -> dict[str, Any]:
        image, stages = config.embed, config.encoder
        assert isinstance(image, ImageConfig)
        assert isinstance(stages, Stages)
        return {
            "model_type": "resnet",
            "num_channels": image.channels,
            "embedding_size": stages.stem,
            "hidden_sizes": list(stages.widths),
            "depths": list(stages.depths),
            "layer_type": "bottleneck" if stages.bottleneck else "basic",
            "hidden_act": stages.activation,
            "downsample_in_first_stage": stages.early,
            "downsample_in_bottleneck": stages.narrow_first,
        }

    def recognises(self, config: Mapping[str, Any]) -> bool:
        bare = {"embedding_size", "hidden_sizes", "depths"} <= set(config) and not {"architectures", "groups_width"} & set(config)  # a RegNet's
        return bare or str(config.get("architecture", "")).startswith("resnet") or super().recognises(config)

    def bare(self, weights: Weights) -> dict[str, Any] | None:
        """torchvision publishes the weights alone; pictures are prepared as its code does."""
        if "layer1.0.conv1.weight" not in weights or "conv1.weight" not in weights:
            return None
        blocks = [int(found[1]) for name in weights if (found := re.match(r"layer(\d)\.\d+\.conv1\.weight$", name))]
        depths = [blocks.count(stage) for stage in sorted(set(blocks))]
        last = "conv3" if "layer1.0.conv3.weight" in weights else "conv2"
        channels = weights["conv1.weight"].shape[1]
        mean, std = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]) if channels == 3 else ([0.5] * channels, [0.5] * channels)
        return {
            "model_type": "resnet",
            "num_channels": channels,
            "embedding_size": weights["conv1.weight"].shape[0],
            "depths": depths,
            "hidden_sizes": [weights[f"layer{stage}.0.{last}.weight"].shape[0] for stage in sorted(set(blocks))],
            "layer_type": "bottleneck" if last == "conv3" else "basic",
            "pretrained_cfg": {"input_size": [channels, 224, 224], "mean": mean, "std": std, "crop_pct": 0.875},
        }

    def foreign(self, weights: Weights) -> Weights:
        return {_plain(name): one for name, one in weights.items()} if "layer1.0.conv1.weight" in weights else weights


def _embed(stages: Stages, channels: int) -> ImageConfig:
    """The stem makes a quarter of a side, each stage after the first a half of that."""
    return ImageConfig(patch=4 * 2 ** (stages.depth - 1 + stages.early), channels=channels, extra=0, partial=True)


def _list(config: Mapping[str, Any], name: str, usual: list[int]) -> tuple[int, ...]:
    said = config.get(name, usual)
    if not isinstance(said, list):
        raise UserError(f"config.json says {name} is {said!r}, it should be a list of whole numbers; copy it again from where it came")
    return tuple(whole({name: one}, name) for one in said)


def _timm_shape(config: Mapping[str, Any]) -> ModelConfig:
    name = str(config["architecture"])
    if name.removeprefix("resnet") not in ResNet.shapes:
        raise UserError(f"timm's architecture {name!r} is not a plain ResNet{near(name, [f'resnet{size}' for size in ResNet.shapes])}")
    return ResNet.shapes[name.removeprefix("resnet")]


def _plain(name: str) -> str:
    """torchvision's and timm's names -> transformers'."""
    module, _, last = name.rpartition(".")
    stem = {"conv1": "embedder.embedder.convolution", "bn1": "embedder.embedder.normalization", "fc": "classifier.1"}
    if module in stem:
        return f"{stem[module]}.{last}"
    found = re.match(r"layer(\d+)\.(\d+)\.(?:(conv|bn)(\d)|downsample\.([01]))$", module)
    if found is None:
        return name
    place = f"encoder.stages.{int(found[1]) - 1}.layers.{found[2]}"
    part = "convolution" if found[3] == "conv" or found[5] == "0" else "normalization"
    return f"{place}.shortcut.{part}.{last}" if found[5] else f"{place}.layer.{int(found[4]) - 1}.{part}.{last}"
