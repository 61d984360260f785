"""Batches: every sequence in one of them, nothing lost, nothing over budget."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.data.batch import ahead, pack, share, stack
from unmask.model.layout import Packed
from unmask.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(minilm: Path) -> Tokenizer:
    return Tokenizer.load(minilm)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 300), max_size=60), st.integers(1, 400))
def test_every_sequence_is_in_one_batch_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = list(share(lengths, budget))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or sum(lengths[i] for i in batch) <= budget
    flat = [lengths[i] for batch in batches for i in batch]
    assert flat == sorted(lengths, reverse=True), "longest first, like beside like"


def test_packed_tokens_are_those_of_the_texts(tokenizer: Tokenizer) -> None:
    encodings = tokenizer.encode([("a cat", "sleeps"), ("by", "the old window of the house"), ("x", "y")])
    packed = pack(encodings)
    assert isinstance(packed.layout, Packed)
    assert packed.inputs["tokens"].tolist() == [number for encoding in encodings for number in encoding.ids]
    assert packed.inputs["segments"].tolist() == [number for encoding in encodings for number in encoding.type_ids]
    assert packed.inputs["positions"].tolist() == [i for encoding in encodings for i in range(len(encoding))]
    assert packed.layout.lengths.tolist() == [len(encoding) for encoding in encodings]


def test_single_texts_carry_no_segments(tokenizer: Tokenizer) -> None:
    assert set(pack(tokenizer.encode(["a", "b c"])).inputs) == {"tokens", "positions"}


def test_images_are_one_padded_batch_without_padding() -> None:
    batch = stack(torch.zeros(3, 1, 8, 8), 5)
    assert batch.layout.lengths.tolist() == [5, 5, 5]
    assert batch.to(torch.device("cpu")) is batch


def test_ahead_keeps_the_order_and_works_one_item_ahead() -> None:
    made: list[int] = []
    threads: set[int] = set()

    def numbers() -> Iterator[int]:
        for i in range(1, 6):
            made.append(i)
            threads.add(threading.get_ident())
            yield i

    given = ahead(numbers())
    assert next(given) == 1
    assert next(given) == 2
    assert len(made) <= 3, "one ahead, not all of them"
    assert list(given) == [3, 4, 5]
    assert threading.get_ident() not in threads


def test_ahead_hands_on_what_goes_wrong() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ValueError("two is missing")

    given = ahead(broken())
    assert next(given) == 1
    with pytest.raises(ValueError, match="two is missing"):
        next(given)


@pytest.mark.parametrize("multiple", [1, 8, 16])
def test_a_batch_is_filled_up_by_a_sequence_that_nobody_reads(multiple: int, tokenizer: Tokenizer) -> None:
    encodings = tokenizer.encode([("a cat", "sleeps"), "by the old window", ("x", "y")])
    whole, plain = pack(encodings, multiple), pack(encodings)
    real = len(plain.inputs["tokens"])
    assert len(whole.inputs["tokens"]) % multiple == 0
    assert len(whole.inputs["tokens"]) - real < multiple
    for name, tensor in plain.inputs.items():
        assert torch.equal(whole.inputs[name][:real], tensor)
        assert name == "positions" or not whole.inputs[name][real:].any()
    assert whole.layout.lengths.sum() == len(whole.inputs["tokens"])
    assert whole.layout.lengths[:3].tolist() == plain.layout.lengths.tolist()
