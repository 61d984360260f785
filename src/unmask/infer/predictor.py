"""`unmask.load(folder)` and what can be asked of it.

Texts in any number and mix of lengths are cut into windows, sorted by length, packed under a budget of tokens, and given
back in their order. In float32 the answers are those of one text at a time.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from unmask.data.batch import Batch, pack, share, stack
from unmask.data.images import pixels
from unmask.errors import UserError
from unmask.model import store
from unmask.model.card import Card
from unmask.model.embed import ImageConfig
from unmask.model.layout import Recording
from unmask.tasks import task, tasks
from unmask.tasks.base import Array, Input, Task, Window
from unmask.tokenizer import Tokenizer

T = TypeVar("T")

CHUNK = 2048  # inputs looked at together: enough to sort by length, few enough to stream
IMAGES = 16  # of a batch, on a CPU


@dataclass(frozen=True)
class Hidden:
    """The vectors of one text's pieces at the layers asked for: (layers, pieces, width), or (pieces, width) for one layer."""

    pieces: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]
    vectors: Array


@dataclass(frozen=True)
class Maps:
    """Attention of every layer and head: `weights[layer, head, i, j]` is how far piece i looks at piece j."""

    pieces: tuple[str, ...]
    weights: Array


def load(
    name: str | Path,
    *,
    precision: str = "float32",
    device: str | None = None,
    leave: Sequence[str] = (),
) -> Predictor:
    """A model folder (ours, transformers', sentence-transformers', timm's), a .npz of ViT, or a hub id.

    `precision` is float32, bf16, or auto: bf16 where the machine computes it natively.
    """
    return Predictor(store.load(name, leave=leave), precision=precision, device=device)


class Predictor:
    def __init__(self, loaded: store.Loaded, *, precision: str = "float32", device: str | None = None) -> None:
        self.loaded = loaded
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.precision = _precision(precision, self.device)
        self.model = loaded.model.to(self.device, {"float32": torch.float32, "bf16": torch.bfloat16}[self.precision])
        # On a CPU what one batch touches must stay in the cache; a GPU wants enough work to fill it.
        self.budget = 65_536 if self.device.type == "cuda" else 1_024

    @property
    def card(self) -> Card:
        return self.loaded.card

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.loaded.tokenizer

    @property
    def heads(self) -> tuple[str, ...]:
        return tuple(self.model.heads)

    @property
    def task(self) -> str:
        """What the folder was made for: what its card says, else the first task that one of its heads serves."""
        if self.card.task:
            return self.card.task
        served = [name for name, one in tasks().items() if one.head in self.heads]
        if not served:
            raise UserError("this model has no head, so there is nothing to predict; use embed")
        return min(served, key=lambda name: self.heads.index(tasks()[name].head))

    # ---- what can be asked

    def fill(self, texts: Any, *, top: int = 5) -> Any:
        """The likeliest pieces for every [MASK]: a `Filled`, or a list of them for a list of texts."""
        return self.ask("fill", texts, top=top)

    def next(self, pairs: Any) -> Any:
        """Whether the second text follows the first: a `Follows` for each pair."""
        return self.ask("next", pairs)

    def classify(self, inputs: Any) -> Any:
        """A `Class` (or `Classes`, or `Number`) for each text, pair of texts, or path of a picture."""
        return self.ask("classify", inputs)

    def tag(self, texts: Any) -> Any:
        """The entities of each text, with the characters they stand at."""
        return self.ask("tagging", texts)

    def answer(self, question: str | Sequence[tuple[str, str]], context: str | None = None, *, none: bool | None = None, longest: int = 30) -> Any:
        """The `Span` of the context that answers. `none` lets the model say that nothing does (by default where it was trained to)."""
        given = (question, context) if isinstance(question, str) else question
        return self.ask("spans", given, none=none, longest=longest)

    def embed(self, texts: Any, *, prompt: str | None = None) -> Array:
        """(D,) for one text or picture, (n, D) for many, float32."""
        found = self.ask("embed", texts, prompt=prompt)
        if isinstance(found, list):
            return np.stack(found) if found else np.zeros((0, self._embedding_width()), np.float32)
        return cast(Array, found)

    def ask(self, name: str, inputs: Any, **options: Any) -> Any:
        """Any task by its name. One input gives one answer, a list of them a list."""
        if _is_one(inputs):
            return next(self.stream(name, [inputs], **options))
        return list(self.stream(name, inputs, **options))

    def stream(self, name: str, inputs: Iterable[Input], **options: Any) -> Iterator[Any]:
        """Answers in the order of any number of inputs, however long the iterable; memory does not grow with it."""
        asked = task(name)(self.tokenizer, self.card, **options)
        self._check(name, asked)
        for chunk in _batched(inputs, CHUNK):
            yield from self._pictures(asked, chunk) if isinstance(self.model.config.embed, ImageConfig) else self._texts(asked, chunk)

    # ---- looking inside

    @torch.inference_mode()
    def hidden(self, texts: Any, *, layer: int | Sequence[int] = -1) -> Any:
        """The vectors of any layer, for other models to use: 0 is what enters the first layer, -1 what leaves the last."""
        if _is_one(texts):
            return self.hidden([texts], layer=layer)[0]
        return list(self._hidden(texts, layer))

    @torch.inference_mode()
    def attention(self, given: Input) -> Maps:
        """Who looks at whom, while the model runs as it always does."""
        encoding, batch = self._single(given)
        recording = Recording(batch.layout)
        self.model(batch.inputs, recording)
        weights = torch.stack([maps[0] for maps in recording.maps]).float().cpu().numpy()
        return Maps(tuple(encoding.tokens) if encoding else self._patches(), weights)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """A folder that this library, transformers and sentence-transformers load."""
        if self.precision != "float32":
            raise UserError("this model was loaded in bf16, and saving it would lose digits; load it with precision='float32' to save it")
        store.save(self.loaded, folder, overwrite=overwrite)

    # ---- texts

    def _texts(self, asked: Task, chunk: Sequence[Input]) -> Iterator[Any]:
        texts = [_text(given, asked.pairs, number) for number, given in enumerate(chunk)]
        windows = asked.windows(texts)
        outputs = self._run(windows, lambda rows, batch: asked.read(self.model, rows, batch), asked)
        owners = itertools.groupby(zip(windows, outputs, strict=True), key=lambda pair: pair[0].owner)
        for owner, group in owners:
            cut, found = zip(*group, strict=True)
            yield asked.decode(cast(Input, texts[owner]), cut, found)

    @torch.inference_mode()
    def _run(self, windows: Sequence[Window], read: Callable[[Tensor, Batch], Tensor], asked: Task) -> list[Array]:
        """What `read` makes of each window, in order; the device is waited for once."""
        pending: list[tuple[list[int], Tensor]] = []
        for chosen in share([len(window.encoding) for window in windows], self.budget):
            batch = pack([windows[i].encoding for i in chosen]).to(self.device)
            pending.append((chosen, read(self.model(batch.inputs, batch.layout), batch)))
        outputs: list[Array] = [np.zeros(0, np.float32)] * len(windows)
        for chosen, tensor in pending:
            values = tensor.float().cpu().numpy()
            counts = [asked.rows(windows[i]) for i in chosen]
            for i, part in zip(chosen, np.split(values, np.cumsum(counts)[:-1]), strict=True):
                outputs[i] = part[0] if asked.over == "texts" else part
        return outputs

    def _hidden(self, texts: Iterable[Input], layer: int | Sequence[int]) -> Iterator[Hidden]:
        layers = [layer] if isinstance(layer, int) else list(layer)
        depth = self.model.config.encoder.depth
        for one in layers:
            if not -depth - 1 <= one <= depth:
                raise UserError(f"there is no layer {one}; this model has layers 0 (what enters) to {depth} (what leaves the last)")
        wanted = [one % (depth + 1) for one in layers]
        for given in texts:
            encoding, batch = self._single(given)
            states = list(self.model.encoder.states(self.model.enter(batch.inputs, batch.layout), batch.inputs.get("positions"), batch.layout))
            vectors = torch.stack([batch.layout.tokens(states[one]) for one in wanted]).float().cpu().numpy()
            pieces = tuple(encoding.tokens) if encoding else self._patches()
            yield Hidden(pieces, tuple(encoding.offsets) if encoding else (), vectors[0] if isinstance(layer, int) else vectors)

    def _single(self, given: Input) -> tuple[Any, Batch]:
        if isinstance(self.model.config.embed, ImageConfig):
            return None, self._stack([given])
        assert self.tokenizer is not None
        encoding = self.tokenizer.encode([_text(given, None, 0)], length=self.card.length, offsets=True)[0]
        return encoding, pack([encoding]).to(self.device)

    # ---- pictures

    @torch.inference_mode()
    def _pictures(self, asked: Task, chunk: Sequence[Input]) -> Iterator[Any]:
        if asked.head not in ("", "classify"):
            raise UserError("this model reads images; classify, embed, hidden and attention can be asked of it")
        for some in _batched(chunk, IMAGES):
            batch = self._stack(some)
            values = asked.read(self.model, self.model(batch.inputs, batch.layout), batch).float().cpu().numpy()
            for given, row in zip(some, values, strict=True):
                yield asked.decode(given, [], [row])

    def _stack(self, pictures: Sequence[Input]) -> Batch:
        config = self.model.config.embed
        assert isinstance(config, ImageConfig)
        image = self.card.image
        if image is None:
            raise UserError("the folder does not say how its pictures are prepared; put a preprocessor_config.json beside config.json")
        ready = torch.stack([pixels(_picture(picture), image) for picture in pictures]).to(next(self.model.parameters()).dtype)
        height, width = image.size
        tokens = config.extra + (height // config.patch) * (width // config.patch)
        return stack(ready, tokens).to(self.device)

    def _patches(self) -> tuple[str, ...]:
        config, image = self.model.config.embed, self.card.image
        assert isinstance(config, ImageConfig)
        assert image is not None
        rows, columns = image.size[0] // config.patch, image.size[1] // config.patch
        return (*(["[CLS]"] * config.extra), *(f"{row},{column}" for row in range(rows) for column in range(columns)))

    # ---- checks

    def _check(self, name: str, asked: Task) -> None:
        if asked.head and asked.head not in self.heads:
            has = f"it has {', '.join(self.heads)}" if self.heads else "it has none (embed, hidden and attention need none)"
            raise UserError(f"this model has no head {asked.head!r}, which {name} needs; {has}")

    def _embedding_width(self) -> int:
        return self.model.config.encoder.width * max(1, len(self.card.pooling))


def _precision(name: str, device: torch.device) -> str:
    if name not in ("float32", "bf16", "auto"):
        raise UserError(f"precision {name!r} is not known; it is float32, bf16 or auto")
    if name != "auto":
        return name
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return "bf16" if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported() else "float32"


def _is_one(inputs: Any) -> bool:
    return isinstance(inputs, str | os.PathLike) or _is_pair(inputs) or hasattr(inputs, "getbands")


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and all(isinstance(part, str) for part in given)


def _text(given: Any, pairs: bool | None, number: int) -> str | tuple[str, str]:
    if _is_pair(given) if pairs is not False else False:
        return cast(tuple[str, str], given)
    if isinstance(given, str) and not pairs:
        return given
    wanted = {True: "a pair of texts", False: "a text", None: "a text or a pair of texts"}[pairs]
    raise UserError(f"input {number + 1} is {'a text' if isinstance(given, str) else f'of type {type(given).__name__}'}; {wanted} is asked for")


def _picture(given: Any) -> Any:
    return given if hasattr(given, "getbands") else Path(given)


def _batched(inputs: Iterable[T], size: int) -> Iterator[tuple[T, ...]]:
    left = iter(inputs)
    while chunk := tuple(itertools.islice(left, size)):
        yield chunk
