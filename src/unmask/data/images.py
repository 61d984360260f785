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
MOST_PIXELS = 100_000_000  # a small file can claim any size; this one is 300 MB once open


def open_picture(picture: Picture, channels: int) -> Pillow.Image:
    """A picture of so many channels, upright as its camera said."""
    if isinstance(picture, Pillow.Image):
        opened = picture
    else:
        if not picture.is_file():
            raise UserError(f"there is no picture {picture}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Pillow.DecompressionBombWarning)  # our own limit says it in a sentence
                opened = Pillow.open(picture)
                if opened.width * opened.height > MOST_PIXELS:
                    raise UserError(f"{picture} claims {opened.width:,} x {opened.height:,} pixels, too many to open; scale it down first")
                opened.load()
        except UnidentifiedImageError:
            raise UserError(f"{picture} is not a picture that can be read; give a JPEG, PNG, WebP, BMP, GIF or TIFF") from None
        except Pillow.DecompressionBombError:
            raise UserError(f"{picture} claims more pixels than can be opened; scale it down first") from None
        except (OSError, ValueError, SyntaxError) as error:
            raise UserError(f"{picture} is cut short or damaged ({error}); copy it again") from None
    opened = ImageOps.exif_transpose(opened)
    if opened.mode in ("P", "PA", "LA") or (opened.mode == "RGB" and "transparency" in opened.info):
        opened = opened.convert("RGBA")
    if opened.mode == "RGBA":  # what shows through is white, as on a page
        opened = Pillow.alpha_composite(Pillow.new("RGBA", opened.size, "white"), opened)
    if opened.mode.startswith(("I", "F")):  # 16 bits a pixel and more: Pillow would clip, not scale
        values = np.asarray(opened, np.float32)
        opened = Pillow.fromarray((values * (255 / max(65_535.0 if opened.mode.startswith("I") else 1.0, float(values.max(initial=0))))).astype(np.uint8))
    if channels not in (1, 3):
        raise UserError(f"the model wants {channels} channels; pictures have 1 or 3")
    return opened.convert("L" if channels == 1 else "RGB")


def pixels(picture: Picture, image: Image) -> Tensor:
    """(C, height, width) float32, normalised."""
    opened = open_picture(picture, image.channels)
    height, width = image.size
    if image.shorter:
        scale = image.shorter / min(opened.size)
        opened = opened.resize((round(opened.width * scale), round(opened.height * scale)), Pillow.Resampling(image.resample))
        left, top = (opened.width - width) // 2, (opened.height - height) // 2
        opened = opened.crop((left, top, left + width, top + height))
    else:
        opened = opened.resize((width, height), Pillow.Resampling(image.resample))
    values = np.asarray(opened, np.float32).reshape(height, width, image.channels) / 255
    values = (values - np.asarray(image.mean, np.float32)) / np.asarray(image.std, np.float32)
    return torch.from_numpy(values.transpose(2, 0, 1).copy())
