"""Pictures to pixels: opened with care, turned upright, resized and scaled as the model's card says."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image as Pillow
from PIL import ImageOps, UnidentifiedImageError
from torch import Tensor

from unmask.errors import UserError
from unmask.model.card import Image

Picture = Path | Pillow.Image
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm"}
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # no others: to open an EPS, Pillow runs Ghostscript
MOST_PIXELS = 100_000_000  # a small file can claim any size; this one is 300 MB once open


def open_picture(picture: Picture, channels: int) -> Pillow.Image:
    """A picture of so many channels, upright as its camera said."""
    if channels not in (1, 3):
        raise UserError(f"the model wants {channels} channels; pictures have 1 or 3")
    try:
        if isinstance(picture, Pillow.Image):
            return _plain(picture).convert("L" if channels == 1 else "RGB")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged notes beside the pixels, and of size: our own limit says it in a sentence
            with Pillow.open(picture, formats=FORMATS) as opened:
                if opened.width * opened.height > MOST_PIXELS:
                    raise UserError(f"{picture} claims {opened.width:,} x {opened.height:,} pixels, too many to open; scale it down first")
                opened.load()
                return _plain(opened).convert("L" if channels == 1 else "RGB")
    except UserError:
        raise
    except UnidentifiedImageError:
        raise UserError(f"{picture} is not a picture that can be read; give a {', '.join(FORMATS)}") from None
    except Pillow.DecompressionBombError:
        raise UserError(f"{picture} claims more pixels than can be opened; scale it down first") from None
    except FileNotFoundError:
        raise UserError(f"there is no picture {picture}") from None
    except Exception as error:  # a damaged picture ends in any of a dozen kinds, from SyntaxError to struct.error
        raise UserError(f"{picture} is cut short or damaged ({error}); copy it again") from None


def _plain(opened: Pillow.Image) -> Pillow.Image:
    """Upright, on white where it was transparent, 8 bits a channel."""
    opened = ImageOps.exif_transpose(opened)
    if opened.mode in ("P", "PA", "LA", "La", "RGBa") or (opened.mode in ("1", "L", "RGB") and "transparency" in opened.info):
        opened = opened.convert("RGBA")
    if opened.mode == "RGBA":  # what shows through is white, as on a page
        return Pillow.alpha_composite(Pillow.new("RGBA", opened.size, "white"), opened)
    if opened.mode.startswith(("I", "F")):  # 16 bits a pixel and more: Pillow would clip, not scale
        values = np.nan_to_num(np.asarray(opened, np.float64), posinf=0, neginf=0).clip(min=0)
        most = max(65_535.0 if opened.mode.startswith("I") else 1.0, values.max(initial=0))
        return Pillow.fromarray((values * (255 / most)).round().astype(np.uint8))
    return opened


def pixels(picture: Picture, image: Image) -> Tensor:
    """(C, height, width) float32, normalised."""
    opened = open_picture(picture, image.channels)
    height, width = image.size
    filtered = Pillow.Resampling(image.resample)
    if image.shorter or any(image.both):
        opened = opened.resize(_shorter(opened.size, image.shorter, picture) if image.shorter else (image.both[1], image.both[0]), filtered)
        left, top = (opened.width - width) // 2, (opened.height - height) // 2
        opened = opened.crop((left, top, left + width, top + height))  # beyond the edge, where it is smaller, all is black
    else:
        opened = opened.resize((width, height), filtered)
    values = np.asarray(opened, np.float32).reshape(height, width, image.channels) / 255
    values = (values - np.asarray(image.mean, np.float32)) / np.asarray(image.std, np.float32)
    return torch.from_numpy(values.transpose(2, 0, 1).copy())


def _shorter(size: tuple[int, int], side: int, picture: Picture) -> tuple[int, int]:
    """Width and height with the shorter one so long; the longer cut to whole pixels, as transformers and torchvision cut it."""
    least = min(size)
    width, height = (side * one // least for one in size)
    if width * height > MOST_PIXELS:
        raise UserError(f"{picture} is {size[0]:,} x {size[1]:,} pixels, too narrow to scale its shorter side to {side}; crop it first")
    return width, height
