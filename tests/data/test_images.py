"""Pictures of every kind: the right pixels, by a computation of one's own or by transformers, or one sentence."""

from __future__ import annotations

import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow
from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from unmask.data.images import open_picture, pixels
from unmask.errors import UserError
from unmask.model.card import Image, read_card

DRAW = np.random.default_rng(0)
PLAIN = Image((8, 12), mean=(0.0,) * 3, std=(1.0,) * 3)
WHITE, BLACK = [255, 255, 255], [0, 0, 0]


def said(picture: Any, channels: int = 3) -> str:
    with pytest.raises(UserError) as caught:
        open_picture(picture, channels)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def opened(path: Path, channels: int = 3) -> Any:
    return np.asarray(open_picture(path, channels))


def some(height: int = 6, width: int = 9, channels: int = 3) -> Any:
    return DRAW.integers(0, 256, (height, width, channels)).astype(np.uint8)


# ---- what is no picture


def test_text_is_no_picture(tmp_path: Path) -> None:
    path = tmp_path / "notes.jpg"
    path.write_text("not a picture at all, but a text")
    assert said(path) == f"{path} is not a picture that can be read; give a JPEG, PNG, WEBP, BMP, GIF, TIFF, PPM"


def test_an_empty_file_and_none_and_a_folder(tmp_path: Path) -> None:
    (tmp_path / "empty.png").write_bytes(b"")
    assert "empty.png is not a picture" in said(tmp_path / "empty.png")
    assert said(tmp_path / "none.png") == f"there is no picture {tmp_path / 'none.png'}"
    (tmp_path / "folder.png").mkdir()
    assert "folder.png" in said(tmp_path / "folder.png")


def test_postscript_is_never_opened(tmp_path: Path) -> None:
    """To open one, Pillow runs Ghostscript, which runs what is in it."""
    path = tmp_path / "page.png"
    Pillow.new("RGB", (4, 4)).save(path, "EPS")
    assert path.read_bytes().startswith(b"%!PS")
    assert "is not a picture" in said(path)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_a_picture_cut_short(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "cut.jpg"
    Pillow.fromarray(some(40, 50)).save(path, kind)
    whole = path.read_bytes()
    assert open_picture(path, 3).size == (50, 40)
    path.write_bytes(whole[: len(whole) // 2])
    assert str(path) in said(path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"]),
    places=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6),
    head=st.booleans(),
)
def test_damaged_pictures_give_a_sentence_or_pixels(tmp_path: Path, kind: str, places: list[tuple[int, int]], head: bool) -> None:
    file = io.BytesIO()
    Pillow.new("RGB", (20, 16), (200, 100, 50)).save(file, kind)
    whole = bytearray(file.getvalue())
    for place, byte in places:
        whole[place % (min(64, len(whole)) if head else len(whole))] = byte
    path = tmp_path / "picture.png"
    path.write_bytes(whole)
    message = ""
    try:
        found = pixels(path, PLAIN)
    except UserError as error:
        message = str(error)
    assert str(path) in message or found.shape == (3, 8, 12)


def png(width: int, height: int, data: bytes = b"", depth: int = 8, colour: int = 2) -> bytes:
    """A PNG by hand."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("width", "height", "says"), [(20_000, 20_000, "more pixels than can be opened"), (10_001, 10_000, "10,001 x 10,000"), (1, 2**31 - 1, "more pixels")]
)
def test_a_picture_that_claims_too_much(tmp_path: Path, width: int, height: int, says: str) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png(width, height, zlib.compress(b"\0" * 100)))
    message = said(path)
    assert str(path) in message
    assert says in message
    assert "scale it down" in message


def test_a_picture_too_narrow_to_scale(tmp_path: Path) -> None:
    path = tmp_path / "line.png"
    Pillow.new("RGB", (60_000, 1)).save(path)
    with pytest.raises(UserError, match=r"line.png is 60,000 x 1 pixels, too narrow to scale its shorter side to 224; crop it first"):
        pixels(path, Image(shorter=224))
    assert pixels(path, Image()).shape == (3, 224, 224)


def test_channels_that_no_picture_has(tmp_path: Path) -> None:
    assert "4 channels" in said(tmp_path / "x.png", 4)


# ---- kinds of pixels


def test_one_pixel(tmp_path: Path) -> None:
    Pillow.new("RGB", (1, 1), (255, 0, 51)).save(tmp_path / "one.png")
    found = pixels(tmp_path / "one.png", Image((2, 3), mean=(0.5, 0.0, 0.0), std=(0.5, 1.0, 2.0)))
    assert found.shape == (3, 2, 3)
    assert np.allclose(found.numpy().reshape(3, 6).T, [1.0, 0.0, 0.1])


def test_grey_is_three_times_the_same(tmp_path: Path) -> None:
    grey = some(channels=1)[..., 0]
    Pillow.fromarray(grey).save(tmp_path / "grey.png")
    assert np.array_equal(opened(tmp_path / "grey.png"), np.stack([grey] * 3, -1))
    assert np.array_equal(opened(tmp_path / "grey.png", 1), grey)


def test_colour_for_a_grey_model(tmp_path: Path) -> None:
    colour = some()
    Pillow.fromarray(colour).save(tmp_path / "colour.png")
    expected = colour @ np.array([299, 587, 114]) / 1000  # ITU-R 601-2
    assert np.abs(opened(tmp_path / "colour.png", 1) - expected).max() <= 1


def test_black_and_white(tmp_path: Path) -> None:
    Pillow.fromarray(np.array([[True, False]])).save(tmp_path / "bits.png")
    assert opened(tmp_path / "bits.png").tolist() == [[WHITE, BLACK]]


def test_sixteen_bits_are_scaled(tmp_path: Path) -> None:
    values = np.array([[0, 257, 128 * 257, 65_535], [128, 129, 65_406, 65_407]], np.uint16)
    Pillow.fromarray(values).save(tmp_path / "deep.png")
    Pillow.fromarray(values).save(tmp_path / "deep.tiff")
    expected = np.round(values / 257).astype(int)
    assert expected[1].tolist() == [0, 1, 254, 255]
    for name in ("deep.png", "deep.tiff"):
        assert np.array_equal(opened(tmp_path / name, 1), expected)
        assert np.array_equal(opened(tmp_path / name), np.stack([expected] * 3, -1))


def test_sixteen_bits_of_colour(tmp_path: Path) -> None:
    values = np.array([[[0, 65_535, 32_896]]], ">u2")
    (tmp_path / "deep.png").write_bytes(png(1, 1, zlib.compress(b"\0" + values.tobytes()), depth=16))
    assert opened(tmp_path / "deep.png").tolist() == [[[0, 255, 128]]]


def test_floats(tmp_path: Path) -> None:
    Pillow.fromarray(np.array([[0.0, 0.5, 1.0, np.nan, -3.0]], np.float32)).save(tmp_path / "float.tiff")
    assert opened(tmp_path / "float.tiff", 1).tolist() == [[0, 128, 255, 0, 0]]


def test_what_shows_through_is_white(tmp_path: Path) -> None:
    values = np.array([[[255, 0, 0, 255], [255, 0, 0, 0], [0, 0, 255, 51]]], np.uint8)
    Pillow.fromarray(values).save(tmp_path / "alpha.png")
    assert opened(tmp_path / "alpha.png").tolist() == [[[255, 0, 0], WHITE, [204, 204, 255]]]
    Pillow.fromarray(np.array([[[0, 0], [0, 255]]], np.uint8)).save(tmp_path / "grey.png")
    assert opened(tmp_path / "grey.png").tolist() == [[WHITE, BLACK]]


def test_a_palette_with_a_hole(tmp_path: Path) -> None:
    picture = Pillow.new("P", (3, 1))
    picture.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    picture.putdata([0, 1, 2])
    picture.save(tmp_path / "palette.png", transparency=1)
    assert opened(tmp_path / "palette.png").tolist() == [[[10, 20, 30], WHITE, [70, 80, 90]]]
    picture.save(tmp_path / "whole.png")
    assert opened(tmp_path / "whole.png").tolist() == [[[10, 20, 30], [40, 50, 60], [70, 80, 90]]]


def test_one_colour_that_is_a_hole(tmp_path: Path) -> None:
    """PNG's tRNS: without an alpha channel, one colour shows through."""
    Pillow.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8)).save(tmp_path / "rgb.png", transparency=(1, 2, 3))
    assert opened(tmp_path / "rgb.png").tolist() == [[WHITE, [4, 5, 6]]]
    Pillow.fromarray(np.array([[7, 8]], np.uint8)).save(tmp_path / "grey.png", transparency=7)
    assert opened(tmp_path / "grey.png").tolist() == [[WHITE, [8, 8, 8]]]


def test_inks(tmp_path: Path) -> None:
    """CMYK by its simplest formula: (255 - ink) x (255 - black) / 255."""
    values = np.array([[[0, 0, 0, 0], [255, 0, 0, 0], [0, 255, 255, 0], [0, 0, 0, 255], [100, 50, 20, 30]]], np.uint8)
    Pillow.frombytes("CMYK", (5, 1), values.tobytes()).save(tmp_path / "inks.tiff")
    found = opened(tmp_path / "inks.tiff").astype(int)
    expected = (255 - values[..., :3].astype(int)) * (255 - values[..., 3:].astype(int)) / 255
    assert np.abs(found - expected).max() <= 1
    Pillow.frombytes("CMYK", (5, 1), values.tobytes()).save(tmp_path / "inks.jpg", quality=100)
    assert opened(tmp_path / "inks.jpg").shape == (1, 5, 3)


@pytest.mark.parametrize("turn", range(1, 9))
def test_a_turned_camera(tmp_path: Path, turn: int) -> None:
    """EXIF's orientation says what must be done to what is stored, TIFF 6.0 section 8."""
    values = some(2, 3)
    stored = {
        1: values,
        2: values[:, ::-1],
        3: values[::-1, ::-1],
        4: values[::-1],
        5: values.transpose(1, 0, 2),
        6: np.rot90(values, 1),
        7: np.rot90(values, 2).transpose(1, 0, 2),
        8: np.rot90(values, -1),
    }[turn]
    exif = Pillow.Exif()
    exif[0x0112] = turn
    Pillow.fromarray(np.ascontiguousarray(stored)).save(tmp_path / "turned.png", exif=exif)
    assert np.array_equal(opened(tmp_path / "turned.png"), values)


def test_a_picture_in_memory_is_not_changed() -> None:
    picture = Pillow.fromarray(some(channels=4))
    before = picture.tobytes()
    assert np.array_equal(np.asarray(open_picture(picture, 3)), np.asarray(open_picture(picture.copy(), 3)))
    assert picture.tobytes() == before


# ---- as transformers prepares them


@pytest.mark.parametrize("resample", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("shape", [(30, 40), (8, 12), (100, 7), (1, 1)])
def test_resized_and_scaled_as_theirs(resample: int, shape: tuple[int, int]) -> None:
    picture = Pillow.fromarray(some(*shape))
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    processor = ViTImageProcessorPil(size={"height": 8, "width": 12}, resample=resample, image_mean=mean, image_std=std)
    expected = processor(picture, return_tensors="np")["pixel_values"][0]
    found = pixels(picture, Image((8, 12), 3, mean, std, resample))
    assert np.abs(found.numpy() - expected).max() <= 1e-6


@pytest.mark.parametrize("shape", [(30, 40), (40, 30), (33, 47), (7, 101), (1, 1), (24, 24), (3, 2)])
@pytest.mark.parametrize(("shorter", "crop"), [(24, (16, 16)), (25, (16, 21)), (16, (16, 16)), (10, (16, 16)), (9, (32, 11)), (11, (5, 40))])
def test_cropped_as_theirs(shape: tuple[int, int], shorter: int, crop: tuple[int, int]) -> None:
    """Also where the crop is larger than the picture: what lies beyond its edge is black, before the mean is taken off."""
    picture = Pillow.fromarray(some(*shape))
    processor = ViTImageProcessorPil(
        size={"shortest_edge": shorter},
        do_center_crop=True,
        crop_size={"height": crop[0], "width": crop[1]},
        resample=3,
        image_mean=[0.1, 0.2, 0.3],
        image_std=[0.4, 0.5, 0.6],
    )
    expected = processor(picture, return_tensors="np")["pixel_values"][0]
    found = pixels(picture, Image(crop, 3, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 3, shorter))
    assert np.abs(found.numpy() - expected).max() <= 1e-6


@pytest.mark.parametrize("shape", [(30, 40), (40, 30), (7, 101), (1, 1), (24, 24)])
@pytest.mark.parametrize(("both", "crop"), [((24, 24), (16, 16)), ((25, 20), (16, 19)), ((10, 30), (16, 16))])
def test_both_sides_then_a_crop_as_theirs(shape: tuple[int, int], both: tuple[int, int], crop: tuple[int, int]) -> None:
    picture = Pillow.fromarray(some(*shape))
    size, cropped = ({"height": height, "width": width} for height, width in (both, crop))
    processor = DeiTImageProcessorPil(size=size, crop_size=cropped, image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6])
    expected = processor(picture, return_tensors="np")["pixel_values"][0]
    found = pixels(picture, Image(crop, 3, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 3, both=both))
    assert np.abs(found.numpy() - expected).max() <= 1e-6


@pytest.mark.parametrize("shape", [(30, 40), (40, 30), (7, 101), (500, 400)])
@pytest.mark.parametrize(("side", "part"), [(32, 0.875), (32, 1.0), (224, 0.95), (384, 0.875), (400, 1.0)])
def test_as_resnets_are_published(shape: tuple[int, int], side: int, part: float, tmp_path: Path) -> None:
    """With ConvNeXT's processor, whose size means another thing below 384 than above."""
    picture = Pillow.fromarray(some(*shape))
    settings = {"size": {"shortest_edge": side}, "crop_pct": part, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    expected = ConvNextImageProcessorPil(**settings)(picture, return_tensors="np")["pixel_values"][0]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**settings, "image_processor_type": "ConvNextImageProcessor"}))
    image = read_card(tmp_path, tmp_path, {}).image
    assert image is not None
    assert np.abs(pixels(picture, image).numpy() - expected).max() <= 1e-6
