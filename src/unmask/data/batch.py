"""Batches: what a model is given, and how sequences of any length are shared out among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from unmask.model.layout import Layout, Packed, Padded
from unmask.tokenizer import Encoding

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Batch:
    inputs: Mapping[str, Tensor]  # tokens, positions, segments | pixels
    layout: Layout
    targets: Mapping[str, Tensor] = field(default_factory=dict)  # what should be answered: rows and labels of each term
    ids: Tensor | None = None  # the samples' numbers, by which any of them can be made again

    def to(self, device: torch.device) -> Batch:
        if device.type == "cpu":
            return self

        def sent(tensor: Tensor) -> Tensor:
            pinned = device.type == "cuda"  # else the copy waits for all that the device has yet to do
            return (tensor.pin_memory() if pinned else tensor).to(device, non_blocking=True)

        inputs, targets = ({name: sent(tensor) for name, tensor in part.items()} for part in (self.inputs, self.targets))
        return Batch(inputs, self.layout.to(device), targets, self.ids)


def pack(encodings: Sequence[Encoding], multiple: int = 1, segments: int = 2) -> Batch:
    """Sequences end to end, nothing padded but the whole: to a multiple of so many tokens, by a last sequence that nobody reads.

    A model that tells fewer than two `segments` apart (RoBERTa's kind) reads all texts of a pair as the first.

    oneDNN keeps a plan for every number of rows it ever multiplied. With any number up to a thousand, that grew to hundreds of MB.
    """
    lengths = [len(encoding) for encoding in encodings]
    real = sum(lengths)
    tail = -real % multiple
    lengths += [tail] if tail else []
    starts = np.cumsum([0, *lengths[:-1]])
    tokens, types = np.zeros((2, real + tail), np.int64)
    tokens[:real] = np.fromiter(chain.from_iterable(e.ids for e in encodings), np.int64, real)
    if segments > 1:
        types[:real] = np.fromiter(chain.from_iterable(e.type_ids for e in encodings), np.int64, real)
    positions = np.arange(real + tail) - np.repeat(starts, lengths)
    positions[real:] = 0  # the last may be longer than the model has positions
    inputs = {"tokens": tokens, "positions": positions}
    if types.any():
        inputs["segments"] = types
    return Batch({name: torch.from_numpy(value) for name, value in inputs.items()}, Packed.of(lengths))


def stack(pixels: Tensor, tokens: int) -> Batch:
    """Images of one size, (B, C, height, width), that become so many tokens each."""
    return Batch({"pixels": pixels}, Padded(len(pixels), tokens))


def share(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Numbers of sequences, longest first, in batches of at most `budget` tokens (or one sequence, where it alone is longer).

    Neighbours are of like length, so that a kernel takes many of them at once; longest first, so that what does not fit
    in memory fails at the start.
    """
    batch: list[int] = []
    room = budget
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and lengths[i] > room:
            yield batch
            batch, room = [], budget
        batch.append(i)
        room -= lengths[i]
    if batch:
        yield batch


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made in a thread while the one before it is in use."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item
