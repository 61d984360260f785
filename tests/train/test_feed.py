"""The feed: what is in a step follows from its number, wherever the feed began and however many ranks share it out."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unmask.config import Duration
from unmask.data.batch import Batch
from unmask.data.shards import Corpus
from unmask.data.stream import IGNORED, Place, Stream
from unmask.model.layout import Packed
from unmask.objectives.base import Frame, Pieces, counts, reading
from unmask.objectives.mlm import MLM
from unmask.objectives.nsp import NSP
from unmask.tokenizer import Tokenizer
from unmask.train.feed import AHEAD, Begin, Feed, Step, joined, padded, unasked
from unmask.train.schedule import staged

Streams = Callable[[float], Stream]
Stages = tuple[tuple[float, int], ...]
TWO: Stages = ((0.0, 2),)
START = Begin()


@pytest.fixture(scope="module")
def made(shards: Path) -> Callable[[Stages], Streams]:
    """Streams of several blocks, by how long their sequences are; what is asked of a batch changes with the share of the run, too."""
    corpus = Corpus(shards)
    pieces = Pieces.of(Tokenizer.load(corpus.tokenizer))

    @cache
    def stream(longest: int) -> Stream:
        return Stream(corpus, reading((MLM(until=0.5), NSP()), Frame(pieces, longest, 0.1, 0)), tokens=128)

    assert stream(48).blocks >= 3
    return lambda stages: lambda share: stream(staged(stages, share))


@pytest.fixture(scope="module")
def streams(made: Callable[[Stages], Streams]) -> Streams:
    return made(((0.0, 48),))


def tensors(batch: Batch) -> dict[str, Tensor]:
    assert batch.ids is not None
    return {**batch.inputs, **batch.targets, "lengths": batch.layout.lengths, "ids": batch.ids}


def same(one: Batch, other: Batch) -> bool:
    left, right = tensors(one), tensors(other)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def alike(one: Step, other: Step) -> bool:
    """Everything in them."""
    if replace(one, parts=[]) != replace(other, parts=[]) or [first for first, _ in one.parts] != [first for first, _ in other.parts]:
        return False
    return all(same(a, b) for (_, a), (_, b) in zip(one.parts, other.parts, strict=True))


def steps(streams: Streams, stop: str, stages: Stages = TWO, begin: Begin = START, **more: Any) -> list[Step]:
    with closing(Feed(streams, stages, Duration.of(stop), begin, **more)) as feed:
        return list(feed)


def onward(step: Step, following: Step) -> Begin:
    """Where a run goes on that was stopped between these."""
    return Begin(step.after, following.clock, step.block_share)


# ---- what is in a step


def test_steps_are_the_micro_batches_of_the_stream_in_order(streams: Streams) -> None:
    found = steps(streams, "40", ((0.0, 3),))
    assert [step.number for step in found] == list(range(40))
    walk, tokens = streams(0.0).walk(), 0
    for step in found:
        assert step.clock.share == step.number / 40
        assert (step.clock.steps, step.clock.tokens) == (step.number, tokens)
        assert [first for first, _ in step.parts] == [0, 1, 2]
        for _, batch in step.parts:
            after, block, index = next(walk)
            assert same(batch, block.make(index, step.clock.share))
        assert step.after == after
        assert step.tokens == sum(int(batch.layout.lengths.sum()) for _, batch in step.parts)
        tokens += step.tokens


def test_what_is_asked_changes_with_the_share(streams: Streams) -> None:
    """The streams here ask 15% at first and half in the end: else the test before would hold for a share that is forgotten."""
    found = steps(streams, "40")
    asked = [step.counts["words"] / step.tokens for step in found]
    assert sum(asked[-10:]) > 2 * sum(asked[:10])


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_share_out_every_step(ranks: int, streams: Streams) -> None:
    whole = steps(streams, "12", ((0.0, 5),))
    shared = [steps(streams, "12", ((0.0, 5),), rank=rank, ranks=ranks) for rank in range(ranks)]
    for step, *parts in zip(whole, *shared, strict=True):
        assert all((part.clock, part.tokens, part.after) == (step.clock, step.tokens, step.after) for part in parts)
        found = sorted(((first, batch) for part in parts for first, batch in part.parts), key=lambda pair: pair[0])
        assert all(first % ranks == rank for rank, part in enumerate(parts) for first, _ in part.parts)
        assert [first for first, _ in found] == [0, 1, 2, 3, 4]
        assert all(same(batch, other) for (_, batch), (_, other) in zip(found, step.parts, strict=True))
        assert {term: sum(part.counts[term] for part in parts) for term in step.counts} == step.counts


@pytest.mark.parametrize("together", [1, 2, 3])
def test_ranks_that_must_go_evenly_do(together: int, streams: Streams) -> None:
    """Of five micro-batches three ranks have two, two and one. Who has fewer goes through the model again, and nothing is asked."""
    plain = [steps(streams, "4", ((0.0, 5),), rank=rank, ranks=3, together=together) for rank in range(3)]
    even = [steps(streams, "4", ((0.0, 5),), rank=rank, ranks=3, together=together, even=True) for rank in range(3)]
    for before, after in zip(plain, even, strict=True):
        for one, other in zip(before, after, strict=True):
            assert len(other.parts) == -(-2 // together)
            more = other.parts[len(one.parts) :]
            assert alike(one, replace(other, parts=other.parts[: len(one.parts)])), "counts are those of what is asked"
            for _, batch in more:
                assert set(counts(batch).values()) == {0}
                assert same(batch, unasked(one.parts[-1][1]))
                assert torch.equal(batch.inputs["tokens"], one.parts[-1][1].inputs["tokens"])
    assert len(even[2][0].parts) - len(plain[2][0].parts) == (together == 1)


@pytest.mark.parametrize("together", [1, 2, 3, 9])
def test_counts_are_those_of_the_labels(together: int, streams: Streams) -> None:
    for step in steps(streams, "10", ((0.0, 5),), together=together):
        assert [first for first, _ in step.parts] == list(range(0, 5, together))
        for term in ("words", "next"):
            labels = torch.cat([batch.targets[f"{term}.labels"] for _, batch in step.parts]).tolist()
            assert step.counts[term] == sum(label != IGNORED for label in labels) > 0


def test_what_is_finished_is_what_the_loop_gets(streams: Streams) -> None:
    found = steps(streams, "3", together=2, finish=lambda batch: padded(batch, 48))
    plain = steps(streams, "3", together=2)
    for step, other in zip(found, plain, strict=True):
        assert step.parts[0][1].inputs["tokens"].shape == (len(other.parts[0][1].layout.lengths), 48)
        assert step.counts == other.counts


# ---- schedules


@pytest.mark.parametrize(("stop", "half"), [("9", 5), ("10", 5), ("3000tok", None), ("2ep", None)])
def test_a_step_grows_when_its_stage_begins(stop: str, half: int | None, streams: Streams) -> None:
    found = steps(streams, stop, ((0.0, 1), (0.5, 3)))
    assert [len(step.parts) for step in found] == [1 if step.clock.share < 0.5 else 3 for step in found]
    grown = next(i for i, step in enumerate(found) if len(step.parts) == 3)
    assert 0 < grown < len(found) - 1
    assert grown == half or half is None


@pytest.mark.parametrize(("stop", "end"), [("3000tok", lambda step: step.clock.tokens + step.tokens), ("2ep", lambda step: step.after.epoch)])
def test_it_stops_at_the_first_step_that_is_far_enough(stop: str, end: Callable[[Step], float], streams: Streams) -> None:
    found, enough = steps(streams, stop), Duration.of(stop).amount
    assert end(found[-2]) < enough <= end(found[-1])


LONGER: Stages = ((0.0, 16), (0.3, 32), (0.6, 48))


def test_sequences_get_longer_where_a_block_begins(made: Callable[[Stages], Streams]) -> None:
    """Against the same said the long way: every micro-batch found anew from its place."""
    found = steps(made(LONGER), "120")
    block = cache(lambda share, place: made(LONGER)(share).block(*place))
    place, share, late = Place(), 0.0, 0
    for step in found:
        for _, batch in step.parts:
            share = step.clock.share if place.batch == 0 else share
            expected = block(share, (place.epoch, place.block))
            assert same(batch, expected.make(place.batch, step.clock.share))
            late += staged(LONGER, share) < staged(LONGER, step.clock.share)
            following = Place(place.epoch, place.block + 1) if place.block + 1 < expected.stream.blocks else Place(place.epoch + 1)
            place = replace(place, batch=place.batch + 1) if place.batch + 1 < len(expected.batches) else following
        assert step.after == place
        assert step.block_share == share
    assert late > 5, "stages began in the middle of blocks"
    assert max(int(batch.layout.lengths.max()) for _, batch in found[-1].parts) > 32, "the last stage was reached"


@pytest.mark.parametrize("stop", ["90", "16000tok", "2ep"])
def test_a_feed_goes_on_from_anywhere(stop: str, made: Callable[[Stages], Streams]) -> None:
    """Also from the middle of a block whose sequences are shorter than those that the share would have now."""
    stages = ((0.0, 2), (0.4, 3))
    whole = steps(made(LONGER), stop, stages)
    pairs = list(itertools.pairwise(whole))
    late = [i for i, (one, two) in enumerate(pairs) if one.after.batch and staged(LONGER, one.block_share) < staged(LONGER, two.clock.share)]
    begin = onward(*pairs[late[0]])
    forgot = steps(made(LONGER), stop, stages, replace(begin, block_share=begin.clock.share))
    assert not alike(forgot[0], whole[late[0] + 1]), "what the share was when the block began matters here"
    for at in {0, len(whole) // 2, late[0], late[-1]}:
        rest = steps(made(LONGER), stop, stages, onward(whole[at], whole[at + 1]))
        assert len(rest) == len(whole) - at - 1
        assert all(alike(one, other) for one, other in zip(whole[at + 1 :], rest, strict=True))


# ---- by wall-clock


def timed(feed: Feed, ends: Sequence[float]) -> list[Step]:
    """Steps, each of which ended when that says."""
    found = []
    with closing(feed):
        for step in feed:
            found.append(step)
            feed.tell(step.number, ends[step.number])
    return found


UNEVEN = [round(0.3 * i + 0.2 * (i % 3), 3) for i in range(1, 100)]


def test_by_wall_clock_the_share_is_what_was_told_some_steps_before(streams: Streams) -> None:
    found = timed(Feed(streams, ((0.0, 1), (0.5, 2)), Duration.of("6s"), START), UNEVEN)
    seconds = [0.0] * (AHEAD + 1) + UNEVEN
    assert [step.clock.seconds for step in found] == seconds[: len(found)]
    assert [step.clock.share for step in found] == [second / 6 for second in seconds[: len(found)]]
    assert seconds[len(found)] >= 6 > seconds[len(found) - 1]
    assert [len(step.parts) for step in found] == [1 if second < 3 else 2 for second in seconds[: len(found)]]


def test_by_wall_clock_what_is_known_is_made_again(made: Callable[[Stages], Streams]) -> None:
    def feed(begin: Begin = START, **more: Any) -> Feed:
        return Feed(made(LONGER), ((0.0, 2), (0.5, 3)), Duration.of("12s"), begin, **more)

    whole = timed(feed(), UNEVEN)
    known = {step.number: UNEVEN[step.number] for step in whole}
    other = [999.0] * len(UNEVEN)  # what a slower machine tells of steps that were made before counts nothing
    assert all(alike(one, two) for one, two in zip(whole, timed(feed(known=known), other), strict=True))
    for at in (0, 1, 5, len(whole) - 3):
        begin = onward(whole[at], replace(whole[at + 1], clock=replace(whole[at + 1].clock, seconds=UNEVEN[at])))
        before = {step: second for step, second in known.items() if step <= at}  # what a log keeps of a run that is gone on from there
        for again in (timed(feed(begin, known=before), UNEVEN), timed(feed(begin, known=known), other)):
            assert all(alike(one, two) for one, two in zip(whole[at + 1 :], again, strict=True))


def test_the_first_that_is_told_of_a_step_counts(streams: Streams) -> None:
    feed = Feed(streams, TWO, Duration.of("6s"), START, known={3: 1.5})
    assert feed.tell(3, 2.0) == 1.5
    assert feed.tell(4, 2.5) == 2.5
    assert feed.tell(4, 9.0) == 2.5


def test_by_wall_clock_it_waits_for_what_it_must_know(streams: Streams) -> None:
    feed = Feed(streams, TWO, Duration.of("60s"), START)
    with closing(feed):
        found = list(itertools.islice(feed, AHEAD + 1))
        assert [step.clock.seconds for step in found] == [0.0] * (AHEAD + 1)
        waiting = iter(feed.queue.get, None)
        reader: list[Step] = []
        thread = threading.Thread(target=lambda: reader.append(next(waiting)), daemon=True)  # type: ignore[arg-type]
        thread.start()
        time.sleep(0.1)
        assert not reader, "nobody told when step 0 ended"
        feed.tell(0, 7.0)
        thread.join(10)
        assert reader[0].clock.share == 7 / 60


# ---- the thread


class Broken(Stream):
    """One that fails in its second block."""

    def __init__(self, inner: Stream) -> None:
        self.__dict__.update(inner.__dict__)

    def block(self, epoch: int, block: int) -> Any:
        if block == 1:
            raise OSError(5, "Input/output error")
        return super().block(epoch, block)


def test_an_error_in_the_thread_is_raised_in_the_loop(streams: Streams) -> None:
    """After the steps that were made before it."""
    broken = Broken(streams(0.0))
    feed = Feed(lambda share: broken, ((0.0, 1),), Duration.of("1000"), START)
    each, good = iter(feed), len(streams(0.0).block(0, 0).batches)
    assert [step.number for step in itertools.islice(each, good)] == list(range(good))
    with pytest.raises(OSError, match="Input/output error"):
        next(each)
    feed.thread.join(10)
    assert not feed.thread.is_alive()


@pytest.mark.parametrize("read", [0, 1, 7])
@pytest.mark.parametrize("stop", ["1000000", "1000s"])
def test_close_ends_the_thread(stop: str, read: int, streams: Streams) -> None:
    """While it waits for room in its queue, and while it waits to be told of a step; and where nobody ever read."""
    feed = Feed(streams, TWO, Duration.of(stop), START, known={0: 0.1, 1: 0.2, 2: 0.3})
    each = iter(feed)
    assert len(list(itertools.islice(each, read))) == read
    if read:
        time.sleep(0.05)
        assert feed.thread.is_alive()
    before = time.monotonic()
    feed.close()
    assert time.monotonic() - before < 5
    assert not feed.thread.is_alive()


def test_no_more_is_made_than_is_ahead(streams: Streams) -> None:
    made: list[int] = []

    def finish(batch: Batch) -> Batch:
        made.append(1)
        return batch

    with closing(Feed(streams, ((0.0, 1),), Duration.of("1000000"), START, finish=finish)) as feed:
        list(itertools.islice(feed, 5))
        time.sleep(0.3)
        assert 5 + AHEAD <= len(made) <= 5 + AHEAD + 1  # those in the queue, and the one that waits for room there


# ---- batches as kernels want them


def parts(streams: Streams, count: int) -> list[Batch]:
    return [batch for _, batch in itertools.islice(streams(0.0).batches(), count)]


def answers(batches: Iterable[Batch]) -> list[tuple[int, int, int, int]]:
    """Every label that counts, with the token and the position in the row that it is asked of."""
    found = []
    for batch in batches:
        tokens, positions = batch.layout.tokens(batch.inputs["tokens"]), batch.layout.tokens(batch.inputs["positions"])
        bounds = [0, *itertools.accumulate(batch.layout.lengths.tolist())]
        for row, label in zip(batch.targets["words.rows"].tolist(), batch.targets["words.labels"].tolist(), strict=True):
            if label != IGNORED:
                sequence = next(i for i, bound in enumerate(bounds) if bound > row) - 1
                assert batch.ids is not None
                found.append((int(batch.ids[sequence]), int(positions[row]), int(tokens[row]), label))
    return found


@pytest.mark.parametrize("count", [1, 2, 5])
def test_joined_batches_are_their_parts(count: int, streams: Streams) -> None:
    some = parts(streams, count)
    whole = joined(some)
    assert isinstance(whole.layout, Packed)
    assert whole.layout.longest == max(int(one.layout.lengths.max()) for one in some)
    assert whole.layout.lengths.tolist() == [length for one in some for length in one.layout.lengths.tolist()]
    for name, value in whole.inputs.items():
        assert torch.equal(value, torch.cat([one.inputs[name] for one in some]))
    assert answers([whole]) == answers(some)
    assert torch.equal(whole.targets["next.labels"], torch.cat([one.targets["next.labels"] for one in some]))
    assert len(answers([whole])) > 10 * count


def test_padded_batches_hold_the_same_sequences_and_targets(streams: Streams) -> None:
    for batch in parts(streams, 5):
        found = padded(batch, 48)
        assert found.inputs["tokens"].shape == (len(batch.layout.lengths), 48)
        for name, value in batch.inputs.items():
            assert torch.equal(found.layout.tokens(found.inputs[name]), value)
            for row, sequence in zip(found.inputs[name], batch.layout.split(value), strict=True):
                assert torch.equal(row[: len(sequence)], sequence)
                assert not row[len(sequence) :].any()
        assert torch.equal(found.layout.lengths, batch.layout.lengths)
        assert answers([found]) == answers([batch])
        assert found.targets is batch.targets


def test_padded_rows_that_are_all_full_need_no_mask() -> None:
    batch = Batch({"tokens": torch.arange(12)}, Packed.of([4, 4, 4]))
    assert padded(batch, 4).layout.mask is None  # type: ignore[attr-defined]
    assert padded(batch, 5).layout.mask.sum() == 12  # type: ignore[attr-defined]
    assert padded(batch, 4).inputs["tokens"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
