"""What goes into the encoder, against the papers' formulas and torch's own convolution and interpolation."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.model.embed import ImageConfig, ImageEmbed, TextConfig, TextEmbed, resample, sinusoids
from unmask.model.model import initialise

WIDTH = 12


def text(config: TextConfig, width: int = WIDTH) -> TextEmbed:
    embed = TextEmbed(config, width).eval()
    with torch.no_grad():
        for i, tensor in enumerate(embed.parameters()):
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(i)))
    return embed


def image(config: ImageConfig, width: int = WIDTH) -> ImageEmbed:
    embed = ImageEmbed(config, width).eval()
    initialise(embed, torch.Generator().manual_seed(0), deviation=1.0)
    nn.init.normal_(embed.project.bias, generator=torch.Generator().manual_seed(1))  # type: ignore[arg-type]
    return embed


def normalised(x: Tensor, embed: TextEmbed) -> Tensor:
    assert isinstance(embed.norm, nn.LayerNorm)
    centred = x - x.mean(-1, keepdim=True)
    return centred / centred.square().mean(-1, keepdim=True).sqrt() * embed.norm.weight + embed.norm.bias


TOKENS = torch.tensor([4, 0, 7, 7, 2])
POSITIONS = torch.tensor([0, 1, 2, 0, 1])
SEGMENTS = torch.tensor([0, 0, 1, 1, 0])


# ---- text


@pytest.mark.parametrize("width", [2, 8, 13, 768])
def test_sinusoids_are_the_papers(width: int) -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(the same): Vaswani et al. 2017, section 3.5."""
    found = sinusoids(torch.arange(600), width)
    assert found.shape == (600, width)
    for position in (0, 1, 5, 511, 599):
        for column in range(width):
            angle = position / 10_000 ** (2 * (column // 2) / width)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert abs(found[position, column].item() - expected) < 1e-4


def test_sinusoids_of_padded_positions_are_those_of_packed_ones() -> None:
    positions = torch.arange(7).expand(3, -1)
    assert torch.equal(sinusoids(positions, 8)[1], sinusoids(torch.arange(7), 8))


@torch.no_grad()
def test_text_is_a_sum_and_a_norm() -> None:
    embed = text(TextConfig(10, positions=6, segments=2))
    assert embed.segments is not None
    assert embed.positions is not None
    total = embed.words.weight[TOKENS] + embed.positions.weight[POSITIONS] + embed.segments.weight[SEGMENTS]
    assert (embed(TOKENS, POSITIONS, SEGMENTS) - normalised(total, embed)).abs().max() < 1e-5
    rows = [one.expand(2, -1) for one in (TOKENS, POSITIONS, SEGMENTS)]
    assert torch.equal(embed(*rows)[1], embed(TOKENS, POSITIONS, SEGMENTS)), "padded rows as packed ones"


@torch.no_grad()
def test_segments_default_to_the_first() -> None:
    embed = text(TextConfig(10, positions=6, segments=2))
    assert torch.equal(embed(TOKENS, POSITIONS), embed(TOKENS, POSITIONS, torch.zeros_like(TOKENS)))
    assert not torch.equal(embed(TOKENS, POSITIONS), embed(TOKENS, POSITIONS, torch.ones_like(TOKENS)))


@torch.no_grad()
def test_no_segments_is_no_table() -> None:
    embed = text(TextConfig(10, positions=6, segments=0))
    assert embed.segments is None
    assert torch.equal(embed(TOKENS, POSITIONS), embed(TOKENS, POSITIONS, SEGMENTS))


@torch.no_grad()
def test_positions_start_at_the_first_row() -> None:
    """RoBERTa's tables keep two rows before position 0."""
    plain, later = text(TextConfig(10, positions=6)), text(TextConfig(10, positions=6, first=2))
    assert plain.positions is not None
    assert later.positions is not None
    assert later.positions.weight.shape == (8, WIDTH)
    plain.load_state_dict(later.state_dict() | {"positions.weight": later.positions.weight[2:]})
    assert torch.equal(plain(TOKENS, POSITIONS + 3), later(TOKENS, POSITIONS + 3))


@torch.no_grad()
def test_kinds_of_position() -> None:
    none, waves = (text(TextConfig(10, positions=6, kind=kind)) for kind in ("none", "sinusoidal"))  # type: ignore[arg-type]
    assert none.positions is None
    assert waves.positions is None
    assert none.segments is not None
    total = none.words.weight[TOKENS] + none.segments.weight[0]
    assert (none(TOKENS, POSITIONS) - normalised(total, none)).abs().max() < 1e-5
    assert (waves(TOKENS, POSITIONS) - normalised(total + sinusoids(POSITIONS, WIDTH), waves)).abs().max() < 1e-5
    assert waves.bfloat16()(TOKENS, POSITIONS).dtype == torch.bfloat16


@torch.no_grad()
def test_factorised_width() -> None:
    """ALBERT and ELECTRA: narrow tables and a narrow norm, then one dense layer to the encoder's width."""
    embed = text(TextConfig(10, positions=6, width=4))
    assert {name: tuple(p.shape) for name, p in embed.named_parameters()} == {
        "words.weight": (10, 4),
        "positions.weight": (6, 4),
        "segments.weight": (2, 4),
        "norm.weight": (4,),
        "norm.bias": (4,),
        "project.weight": (WIDTH, 4),
        "project.bias": (WIDTH,),
    }
    assert embed.positions is not None
    assert embed.segments is not None
    inner = normalised(embed.words.weight[TOKENS] + embed.positions.weight[POSITIONS] + embed.segments.weight[SEGMENTS], embed)
    assert isinstance(embed.project, nn.Linear)
    assert (embed(TOKENS, POSITIONS, SEGMENTS) - (inner @ embed.project.weight.T + embed.project.bias)).abs().max() < 1e-5


@torch.no_grad()
def test_norm_options() -> None:
    bare = text(TextConfig(10, positions=6, norm=False))
    assert bare.positions is not None
    assert bare.segments is not None
    assert torch.equal(bare(TOKENS, POSITIONS), bare.words.weight[TOKENS] + bare.segments.weight[0] + bare.positions.weight[POSITIONS])
    assert "norm.bias" not in text(TextConfig(10, norm_bias=False)).state_dict()
    one, two = (text(TextConfig(10, positions=6, epsilon=epsilon)) for epsilon in (1e-12, 1.0))
    assert (one(TOKENS, POSITIONS) - two(TOKENS, POSITIONS)).abs().max() > 1e-2


@pytest.mark.parametrize("config", [TextConfig(10, positions=6, width=4), TextConfig(10, positions=6, first=1), ImageConfig((8, 12), 4, 2, extra=2)], ids=str)
def test_no_parameter_is_dead(config: TextConfig | ImageConfig) -> None:
    if isinstance(config, TextConfig):
        embed: nn.Module = text(config)
        out = embed(TOKENS, POSITIONS, SEGMENTS)
    else:
        embed = image(config)
        out = embed(torch.randn(2, 2, 8, 12))
    (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(5))).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in embed.parameters())


@torch.no_grad()
def test_dropout_in_training_only() -> None:
    embed = text(TextConfig(10, positions=6, dropout=1.0))
    assert embed(TOKENS, POSITIONS).abs().sum() > 0
    assert embed.train()(TOKENS, POSITIONS).abs().sum() == 0
    picture = image(ImageConfig((8, 8), 4, dropout=1.0))
    assert picture(torch.randn(1, 3, 8, 8)).abs().sum() > 0
    assert picture.train()(torch.randn(1, 3, 8, 8)).abs().sum() == 0


# ---- pictures


@pytest.mark.parametrize(
    "config",
    [
        ImageConfig((16, 16), 4),
        ImageConfig((12, 20), 4, 1),
        ImageConfig((8, 8), 8),
        ImageConfig((6, 4), 1, 4),
        ImageConfig((8, 12), 4, extra=2),
        ImageConfig((8, 8), 4, extra=0),
    ],
    ids=lambda config: f"{config.size}-{config.patch}-{config.channels}-{config.extra}",
)
@torch.no_grad()
def test_patches_are_the_convolutions(config: ImageConfig) -> None:
    embed = image(config).double()
    pixels = torch.randn(3, config.channels, *config.size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    patches = F.conv2d(pixels, embed.project.weight, embed.project.bias, stride=config.patch).flatten(2).transpose(1, 2)
    expected = torch.cat([*(token.expand(3, 1, WIDTH) for token in embed.extra), patches], 1) + embed.positions
    found = embed(pixels)
    assert found.shape == (3, config.extra + config.grid[0] * config.grid[1], WIDTH)
    assert (found - expected).abs().max() < 1e-12


@torch.no_grad()
def test_another_size_has_its_positions_resampled() -> None:
    """The extra tokens keep their own position; the patches' are a picture, rows by columns."""
    config = ImageConfig((8, 12), 4, extra=2)
    embed = image(config)
    pixels = torch.randn(2, 3, 20, 16, generator=torch.Generator().manual_seed(2))
    patches = F.conv2d(pixels, embed.project.weight, embed.project.bias, stride=4).flatten(2).transpose(1, 2)
    found = embed(pixels) - torch.cat([*(token.expand(2, 1, WIDTH) for token in embed.extra), patches], 1)
    assert (found[:, :2] - embed.positions[:, :2]).abs().max() < 1e-5
    for channel in range(WIDTH):
        picture = torch.tensor([[embed.positions[0, 2 + row * 3 + column, channel] for column in range(3)] for row in range(2)])
        resized = F.interpolate(picture[None, None], (5, 4), mode="bicubic", align_corners=False)[0, 0]
        for row in range(5):
            for column in range(4):
                assert abs(found[1, 2 + row * 4 + column, channel] - resized[row, column]) < 1e-5


@pytest.mark.parametrize("grid", [(4, 4), (2, 5), (7, 1)], ids=str)
def test_resampling_to_the_same_grid_changes_nothing(grid: tuple[int, int]) -> None:
    positions = torch.randn(1, grid[0] * grid[1], 6, generator=torch.Generator().manual_seed(0))
    assert (resample(positions, grid, grid) - positions).abs().max() < 1e-6


def cubic(distance: float, a: float = -0.75) -> float:
    """Keys' kernel."""
    x = abs(distance)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0


@pytest.mark.parametrize(("old", "new"), [((3, 3), (5, 5)), ((2, 4), (3, 7)), ((4, 2), (2, 6)), ((6, 6), (3, 2))], ids=str)
def test_resampling_by_hand(old: tuple[int, int], new: tuple[int, int]) -> None:
    """Bicubic, pixel by pixel: sixteen neighbours, those beyond the edge are the edge's."""
    positions = torch.randn(1, old[0] * old[1], 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = resample(positions, old, new)
    for row in range(new[0]):
        for column in range(new[1]):
            y, x = ((place + 0.5) * before / after - 0.5 for place, before, after in zip((row, column), old, new, strict=True))
            total = torch.zeros(2, dtype=torch.float64)
            for i in range(math.floor(y) - 1, math.floor(y) + 3):
                for j in range(math.floor(x) - 1, math.floor(x) + 3):
                    at = min(max(i, 0), old[0] - 1) * old[1] + min(max(j, 0), old[1] - 1)
                    total += cubic(y - i) * cubic(x - j) * positions[0, at]
            assert (found[0, row * new[1] + column] - total).abs().max() < 1e-6


@pytest.mark.parametrize(("size", "patch"), [((224, 225), 16), ((30, 32), 8), ((0, 16), 16)])
def test_patches_must_divide_the_picture(size: tuple[int, int], patch: int) -> None:
    with pytest.raises(ValueError, match=rf"{patch} .*{size[0]} x {size[1]}"):
        ImageConfig(size, patch)
