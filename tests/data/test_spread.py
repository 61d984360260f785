"""One job over many items: in order, bounded, and with a sentence when something dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial

import pytest

from unmask.data.spread import AHEAD, cores, spread
from unmask.errors import UserError


def square(number: int) -> int:
    return number * number


def where(_: int) -> int:
    return os.getpid()


def die(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def complain(number: int) -> int:
    raise UserError(f"item {number} is wrong; leave it out")


@pytest.mark.parametrize("engine", ["here", "processes"])
def test_results_in_order(engine: str) -> None:
    assert list(spread(square, range(50), engine=engine, processes=2)) == [number * number for number in range(50)]


def test_in_processes_of_its_own() -> None:
    assert os.getpid() not in set(spread(where, range(4), processes=2))
    assert set(spread(where, range(4), processes=1)) == {os.getpid()}


def test_an_endless_iterable_is_read_as_it_is_needed() -> None:
    read = []

    def endless() -> Iterator[int]:
        number = 0
        while True:
            read.append(number)
            yield number
            number += 1

    found = spread(square, endless(), processes=2)
    assert [next(found) for _ in range(5)] == [0, 1, 4, 9, 16]
    assert len(read) <= 5 + 2 * AHEAD
    found.close()  # type: ignore[attr-defined]


def test_a_process_that_dies_is_told() -> None:
    with pytest.raises(UserError, match=r"one of the processes died.*fewer --processes: what is done is kept"):
        list(spread(die, range(10), processes=2))


def test_a_mistake_keeps_its_sentence() -> None:
    with pytest.raises(UserError, match="item 0 is wrong; leave it out"):
        list(spread(complain, range(3), processes=2))


def test_over_a_cluster() -> None:
    """A local one of two workers: in order, elsewhere, bounded, and a mistake keeps its sentence."""
    ray = pytest.importorskip("ray")
    try:
        assert list(spread(partial(pow, 2), range(20), engine="ray", processes=2)) == [2**number for number in range(20)]
        assert os.getpid() not in set(spread(where, range(4), engine="ray"))
        with pytest.raises(UserError, match="item 0 is wrong; leave it out"):
            list(spread(complain, range(3), engine="ray"))
        with pytest.raises(UserError, match=r"the Ray cluster lost a worker .*; run the same command again: what is done is kept"):
            list(spread(die, range(10), engine="ray"))
    finally:
        ray.shutdown()


def test_bad_settings() -> None:
    with pytest.raises(UserError, match="no engine 'rya', did you mean ray"):
        spread(square, [], engine="rya")
    with pytest.raises(UserError, match="0 processes cannot work"):
        spread(square, [], processes=0)
    assert cores() >= 1
