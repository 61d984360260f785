"""`unmask.load(folder)` and what can be asked of it.

Texts in any number and mix of lengths are cut into windows, sorted by length, packed under a budget of tokens, and given
back in their order. In float32 the answers are those of one text at a time.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from PIL import Image as Pillow
from torch import Tensor, nn

from unmask.data.batch import Batch, ahead, pack, share, stack
from unmask.data.images import Picture, pixels
from unmask.errors import UserError
from unmask.model import store
from unmask.model.card import Card
from unmask.model.embed import ImageConfig, TextConfig
from unmask.model.extend import extend
from unmask.model.layout import Recording
from unmask.model.model import Model
from unmask.tasks import task, tasks
from unmask.tasks.base import Array, Input, Task, Window
from unmask.tokenizer import Encoding, Tokenizer

T = TypeVar("T")
EXTRA = ("[CLS]", "[DISTILL]")  # what stands before the patches


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
    special: tuple[bool, ...]  # [CLS] and its like
    weights: Array


@dataclass(frozen=True)
class Pending:
    """Rows on their way: the numbers of each batch's windows with what is to be theirs, all there once `done` is."""

    batches: list[tuple[list[int], Tensor]]
    done: torch.cuda.Event | None


def load(
    name: str | Path,
    *,
    precision: str = "float32",
    device: str | None = None,
    heads: Mapping[str, int] | None = None,
    leave: Sequence[str] = (),
) -> Predictor:
    """A model folder (ours, transformers', sentence-transformers', timm's), a .npz of ViT, or a hub id.

    `precision` is float32, bf16, or auto: bf16 where the machine computes it natively.
    `heads` asks for these heads, with so many labels each, in place of the folder's own; those it does not have start anew.
    `leave` lists patterns of tensors in the file that may stay unused.
    """
    return Predictor(store.load(name, heads=heads, leave=leave), precision=precision, device=device)


class Predictor:
    def __init__(self, loaded: store.Loaded, *, precision: str = "float32", device: str | None = None) -> None:
        self.loaded = loaded
        self.device = _device(device)
        self.precision = _precision(precision, self.device)
        self.model = _lower(loaded.model.to(self.device), self.precision)
        # On a CPU what one batch touches must stay in the cache; a GPU wants enough work to fill it.
        gpu = self.device.type == "cuda"
        self.budget = 65_536 if gpu else 1_024
        self.chunk = 2_048  # inputs looked at together: enough to sort by length, few enough to stream
        self.images = 256 if gpu else 16  # of one batch
        self.overlap = gpu  # cut the next texts into pieces, and have them computed, while these are made into answers

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
    def pictures(self) -> bool:
        """Whether it reads pictures, not texts."""
        return isinstance(self.model.config.embed, ImageConfig)

    @property
    def task(self) -> str:
        """What the folder was made for: what its card says, else the first task that one of its heads serves."""
        if self.card.task:
            return self.card.task
        served = [name for name, one in tasks().items() if one.head in self.heads]
        if not served:
            has = f"only {', '.join(self.heads)}, which no task reads yet" if self.heads else "none"
            raise UserError(f"this model has no head to predict with (it has {has}); use embed")
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

    def choose(self, given: Any) -> Any:
        """Which of the endings fits: a `Chosen` for (prompt, [ending, ...]), or a list of them for a list of such."""
        return self.ask("choice", given)

    def embed(self, texts: Any, *, prompt: str | None = None) -> Array:
        """(D,) for one text or picture, (n, D) for many, float32."""
        found = self.ask("embed", texts, prompt=prompt)
        if isinstance(found, list):
            return np.stack(found) if found else np.zeros((0, self._embedding_width()), np.float32)
        return cast(Array, found)

    def ask(self, name: str, inputs: Any, **options: Any) -> Any:
        """Any task by its name. One input gives one answer, a list of them a list."""
        found = self.stream(name, inputs, **options)
        return next(found) if _is_one(inputs) else list(found)

    def stream(self, name: str, inputs: Any, **options: Any) -> Iterator[Any]:
        """Answers in the order of any number of inputs, however long the iterable; memory does not grow with it."""
        asked = task(name)(self.tokenizer, self.card, **options)
        self._check(name, asked)
        if self.pictures:
            return self._pictures(asked, inputs)
        return self._texts(asked, inputs)

    # ---- looking inside

    def hidden(self, texts: Any, *, layer: int | Sequence[int] = -1) -> Any:
        """The vectors of any layer, for other models to use: 0 is what enters the first layer, -1 what leaves the last."""
        found = self._hidden(texts, _layers(layer, self.model.config.encoder.depth), single=isinstance(layer, Integral))
        return next(found) if _is_one(texts) else list(found)

    @torch.inference_mode()
    def attention(self, given: Input) -> Maps:
        """Who looks at whom, while the model runs as it always does."""
        (given,) = self._checked([given], None)
        windows = [] if self.pictures else self._windows([given])
        batch = self._stack([given]) if self.pictures else self._packed([window.encoding for window in windows])
        recording = Recording(batch.layout)
        self.model(batch.inputs, recording)
        if not recording.maps:
            raise UserError(f"a {self.model.config.family} has no attention to show; hidden gives what leaves each of its stages")
        weights = torch.stack([maps[0] for maps in recording.maps]).float().cpu().numpy()
        if windows:
            encoding = windows[0].encoding
            return Maps(tuple(encoding.tokens), tuple(map(bool, encoding.special_tokens_mask)), weights)
        pieces = self._patches(weights.shape[-1])
        return Maps(pieces, tuple("," not in piece for piece in pieces), weights)

    def extend(self, words: Sequence[str]) -> list[str]:
        """Add words to the vocabulary, each started from the pieces it was made of so far; those that were new are given back."""
        return extend(self.loaded, words)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """A folder that this library, transformers and sentence-transformers load."""
        store.save(self.loaded, folder, overwrite=overwrite)

    # ---- texts

    def _texts(self, asked: Task, inputs: Any) -> Iterator[Any]:
        def compute(batch: Batch) -> Tensor:
            return asked.outputs(self.model, self.model(batch.inputs, batch.layout), batch)

        chunks = _batched(self._checked(inputs, asked.pairs, asked.several), self.chunk, start=self.chunk if hasattr(inputs, "__len__") else 1)
        early = ahead if self.overlap else iter  # each stage in a thread of its own, one chunk before the next stage
        cut = early((chunk, asked.windows(cast(Sequence[str | tuple[str, str]], chunk))) for chunk in chunks)
        for chunk, windows, pending in early((chunk, windows, self._start(windows, compute)) for chunk, windows in cut):
            owners = itertools.groupby(zip(windows, self._finish(windows, pending, asked.rows), strict=True), key=lambda pair: pair[0].owner)
            for owner, group in owners:
                parts, found = zip(*group, strict=True)
                yield asked.decode(chunk[owner], parts, [rows[0] for rows in found] if asked.over == "texts" else found)

    @torch.inference_mode()
    def _start(self, windows: Sequence[Window], compute: Callable[[Batch], Tensor]) -> Pending:
        """What `compute` makes of the windows, batch after batch; a GPU is asked for it and not waited for."""
        batches = []
        for chosen in share([len(window.encoding) for window in windows], self.budget):
            found = compute(self._packed([windows[i].encoding for i in chosen], even=True)).float()
            batches.append((chosen, found.to("cpu", non_blocking=True)))
        return Pending(batches, torch.cuda.current_stream(self.device).record_event() if self.device.type == "cuda" else None)

    def _finish(self, windows: Sequence[Window], pending: Pending, rows: Callable[[Window], int]) -> list[Array]:
        """The rows of each window, in order."""
        if pending.done is not None:
            pending.done.synchronize()
        outputs: list[Array] = [np.zeros(0, np.float32)] * len(windows)
        for chosen, tensor in pending.batches:
            values, start = tensor.numpy(), 0
            for i in chosen:
                end = start + rows(windows[i])
                outputs[i], start = values[start:end], end
        return outputs

    def _packed(self, encodings: Sequence[Encoding], *, even: bool = False) -> Batch:
        """A batch on the device; `even`: of one of few numbers of tokens, see `pack`."""
        multiple = 1 if not even else 16 if sum(map(len, encodings)) < 256 else 64
        return pack(encodings, multiple, segments=cast(TextConfig, self.model.config.embed).segments).to(self.device)

    def _hidden(self, inputs: Any, layers: Sequence[int], *, single: bool) -> Iterator[Hidden]:
        found: list[tuple[tuple[str, ...], tuple[tuple[int, int], ...], Array]]
        for chunk in _batched(self._checked(inputs, None), self.images if self.pictures else self.chunk):
            if self.pictures:
                batch = self._stack(chunk)
                states = self._states(batch, layers).unflatten(0, (len(chunk), -1))
                found = [(self._patches(len(rows)), (), rows) for rows in states.float().cpu().numpy()]
            else:
                windows = self._windows(chunk)
                pending = self._start(windows, lambda batch: self._states(batch, layers))
                outputs = self._finish(windows, pending, lambda window: len(window.encoding))
                found = [(tuple(w.encoding.tokens), tuple(w.encoding.offsets), rows) for w, rows in zip(windows, outputs, strict=True)]
            for pieces, offsets, rows in found:
                yield Hidden(pieces, offsets, rows[:, 0] if single else rows.swapaxes(0, 1))

    @torch.inference_mode()
    def _states(self, batch: Batch, layers: Sequence[int]) -> Tensor:
        """(T, layers, D)."""
        states = list(self.model.encoder.states(self.model.enter(batch.inputs, batch.layout), batch.inputs.get("positions"), batch.layout))
        if len({states[layer].shape for layer in layers}) > 1:
            raise UserError(f"the layers of a {self.model.config.family} differ in shape; ask for one at a time")
        return torch.stack([batch.layout.tokens(states[layer]) for layer in layers], 1)

    def _windows(self, texts: Sequence[Any]) -> list[Window]:
        assert self.tokenizer is not None
        return [Window(encoding, i) for i, encoding in enumerate(self.tokenizer.encode(texts, length=self.card.length, offsets=True))]

    # ---- pictures

    @torch.inference_mode()
    def _pictures(self, asked: Task, inputs: Any) -> Iterator[Any]:
        for some in _batched(self._checked(inputs, asked.pairs), self.images):
            batch = self._stack(some)
            values = asked.outputs(self.model, self.model(batch.inputs, batch.layout), batch).float().cpu().numpy()
            for given, row in zip(some, values, strict=True):
                yield asked.decode(given, [], [row])

    def _stack(self, pictures: Sequence[Input]) -> Batch:
        config = self.model.config.embed
        assert isinstance(config, ImageConfig)
        image = self.card.image
        if image is None:
            raise UserError("the folder does not say how its pictures are prepared; put a preprocessor_config.json beside config.json")
        ready = torch.stack([pixels(cast(Picture, picture), image) for picture in pictures]).to(next(self.model.parameters()).dtype)
        return stack(ready, config.tokens(image.size)).to(self.device)

    def _patches(self, count: int) -> tuple[str, ...]:
        """What to call so many rows: the early stages of a CNN have finer patches than what leaves it."""
        config, image = self.model.config.embed, self.card.image
        assert isinstance(config, ImageConfig)
        assert image is not None
        while config.tokens(image.size) < count:
            config = replace(config, patch=config.patch // 2)
        rows, columns = config.grid_of(image.size)
        return (*EXTRA[: config.extra], *(f"{row},{column}" for row in range(rows) for column in range(columns)))

    # ---- checks

    def _check(self, name: str, asked: Task) -> None:
        if asked.head and asked.head not in self.heads:
            has = f"it has {', '.join(self.heads)}" if self.heads else "it has none (embed, hidden and attention need none)"
            raise UserError(f"this model has no head {asked.head!r}, which {name} needs; {has}")

    def _checked(self, inputs: Any, pairs: bool | None, several: bool = False) -> Iterator[Input]:
        """Each input, if it is one that can be read here; they are counted from 1."""
        wanted = (
            "a picture or its path"
            if self.pictures
            else "a prompt and a list of its endings (a tuple)"
            if several
            else {True: "a pair of texts (a tuple)", False: "a text", None: "a text or a pair of texts (a tuple)"}[pairs]
        )
        for number, given in enumerate(_many(inputs), 1):
            if self.pictures:
                good = isinstance(given, str | os.PathLike | Pillow.Image)
            elif several:
                good = _is_choice(given)
            else:
                good = (_is_pair(given) and pairs is not False) or (isinstance(given, str) and pairs is not True)
            if not good:
                kinds = [(isinstance(given, str), "a text"), (_is_pair(given), "a pair of texts"), (isinstance(given, os.PathLike), "a path")]
                kinds.append((_is_choice(given), "a prompt and a list of its endings"))
                kind = next((said for so, said in kinds if so), f"of type {type(given).__name__}")
                raise UserError(f"input {number} is {kind}; {wanted} is asked for")
            yield Path(given) if self.pictures and isinstance(given, str) else given

    def _embedding_width(self) -> int:
        return self.model.config.encoder.width * max(1, len(self.card.pooling))


def _device(name: str | None) -> torch.device:
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(1, device=device).item()  # fails on a device that holds no numbers, too
        return device
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UserError(f"there is no device {name!r} here; leave it out, or say cpu") from None


def _layers(layer: Any, depth: int) -> list[int]:
    """Layers counted from 0, out of one number or a list."""
    asked: list[Any] = list(layer) if isinstance(layer, Iterable) and not isinstance(layer, str) else [layer]
    if not asked or not all(isinstance(one, Integral) and not isinstance(one, bool) and -depth - 1 <= int(one) <= depth for one in asked):
        raise UserError(f"there is no layer {layer!r}; this model has layers 0 (what enters) to {depth} (what leaves the last)")
    return [int(one) % (depth + 1) for one in asked]


def _precision(name: str, device: torch.device) -> str:
    if name not in ("float32", "bf16", "auto"):
        raise UserError(f"precision {name!r} is not known; it is float32, bf16 or auto")
    if name != "auto":
        return name
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return "bf16" if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported() else "float32"


def _lower(model: Model, precision: str) -> Model:
    """The model in that precision. On a CPU only the encoder's products are in bf16: what they add up to stays in float32.

    That costs a thirtieth of the speed, and halves how far the vectors turn from float32's.
    """
    if precision == "bf16" and next(model.parameters()).is_cuda:
        return model.to(torch.bfloat16)
    if precision == "bf16":
        for part in model.encoder.modules():
            if isinstance(part, nn.Linear):
                part.to(torch.bfloat16)
    return model


def _is_one(inputs: Any) -> bool:
    return isinstance(inputs, str | os.PathLike | Pillow.Image) or _is_pair(inputs) or _is_choice(inputs)


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and all(isinstance(part, str) for part in given)


def _is_choice(given: Any) -> bool:
    """A prompt and a list of endings; not a tuple of them, which would be a text and a pair."""
    prompt, endings = given if isinstance(given, tuple) and len(given) == 2 else (None, None)
    return isinstance(prompt, str) and isinstance(endings, list) and bool(endings) and all(isinstance(one, str) for one in endings)


def _many(inputs: Any) -> Iterable[Any]:
    if _is_one(inputs):
        return [inputs]
    if isinstance(inputs, bytes | Mapping) or not isinstance(inputs, Iterable):
        raise UserError(f"the input is of type {type(inputs).__name__}; give a text, a pair of texts (a tuple), a picture, or a list of them")
    return inputs


def _batched(inputs: Iterable[T], size: int, start: int | None = None) -> Iterator[tuple[T, ...]]:
    """Tuples of `size`; or from `start` on four times as many each time, so that the first of a slow stream is answered at once."""
    left, now = iter(inputs), start or size
    while chunk := tuple(itertools.islice(left, min(now, size))):
        yield chunk
        now *= 4
