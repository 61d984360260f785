"""Several processes as one: what they add up is added up, and who is left alone is told so at once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from unmask.errors import UserError
from unmask.train import distribute
from unmask.train.distribute import Group, group

RANK = """
import json, os, signal, sys, time
import torch
torch.set_num_threads(1)
from unmask.errors import UserError
from unmask.train.distribute import group

def tensors(rank):
    # 150 of many shapes, one of them turned, one of numbers that float32 would lose
    made = [torch.full((1 + i % 7, 1 + i % 3), float(i + 1)) * (10 ** rank) for i in range(148)]
    return [*made, torch.arange(6.0).view(2, 3).t() * (10 ** rank), torch.tensor(2.0 ** 20 + rank * 2.0 ** 20)]

with group("cpu") as g:
    found = {"rank": g.rank, "ranks": g.ranks, "first": g.first, "device": str(g.device)}
    found["sum"] = g.sum({"a": 1.0 + g.rank, "b": 2.0 ** 40 + 1, "c": 0.0})
    found["none"] = g.sum({})
    some = tensors(g.rank)
    places = [one.data_ptr() for one in some]
    g.add(some)
    found["same places"] = places == [one.data_ptr() for one in some]
    found["added"] = [one.tolist() for one in some]
    double = [torch.tensor([2.0 ** 40 + g.rank], dtype=torch.float64)]
    g.add(double)
    found["double"] = double[0].tolist()
    g.add([])
    found["agree"] = g.agree(5.25 + g.rank)
    before = time.monotonic()
    time.sleep(0.5 * g.rank)
    g.wait()
    found["waited"] = time.monotonic() - before
    open(sys.argv[1] + f"/{g.rank}.json", "w").write(json.dumps(found))
    g.wait()
    dies = int(sys.argv[2])
    if g.rank == dies:
        os.kill(os.getpid(), signal.SIGKILL)
    before = time.monotonic()
    try:
        for _ in range(1000):
            g.add(tensors(g.rank)) if sys.argv[3] == "add" else g.agree(1.0)
    except UserError as error:
        print(json.dumps({"said": str(error), "after": time.monotonic() - before}), flush=True)
        os._exit(3)  # what the backend does when it is taken down alone is not asked here
"""


def ranks(place: Path, dies: int, by: str) -> tuple[list[dict[str, Any]], subprocess.CompletedProcess[str]]:
    """What both ranks found, and how the one that was left ended."""
    (place / "rank.py").write_text(RANK)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(place / "rank.py"), str(place), str(dies), by]
    started = [
        subprocess.Popen(command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    ends = [subprocess.CompletedProcess(one.args, one.returncode, *said) for one, said in ((one, one.communicate(timeout=60)) for one in started)]
    assert ends[dies].returncode == -signal.SIGKILL, ends[dies].stderr
    return [json.loads((place / f"{rank}.json").read_text()) for rank in range(2)], ends[1 - dies]


@pytest.mark.parametrize(("dies", "by"), [(1, "add"), (0, "agree")])
def test_two_ranks(dies: int, by: str, tmp_path: Path) -> None:
    found, left = ranks(tmp_path, dies, by)
    one, two = found
    assert [(each["rank"], each["ranks"], each["first"], each["device"]) for each in found] == [(0, 2, True, "cpu"), (1, 2, False, "cpu")]
    assert one["sum"] == two["sum"] == {"a": 3.0, "b": 2.0**41 + 2, "c": 0.0}, "counts are exact, in float64"
    assert one["none"] == two["none"] == {}
    expected = [torch.full((1 + i % 7, 1 + i % 3), 11.0 * (i + 1)) for i in range(148)] + [11.0 * torch.arange(6.0).view(2, 3).t(), torch.tensor(3.0 * 2**20)]
    assert one["added"] == two["added"] == [each.tolist() for each in expected]
    assert one["same places"]
    assert one["double"] == two["double"] == [2.0**41 + 1]
    assert one["agree"] == two["agree"] == 5.25
    assert one["waited"] > 0.4, "the second rank came half a second later"

    assert left.returncode == 3, left.stderr
    ended = json.loads(left.stdout)
    assert ended["said"].startswith("another rank is gone (")
    assert ended["said"].endswith("); run the same command again: it goes on from the last checkpoint")
    assert "\n" not in ended["said"]
    assert ended["after"] < 10


def test_alone_nothing_is_asked_of_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **more: Any) -> None:
        raise AssertionError

    for name in ("all_reduce", "barrier", "get_backend"):
        monkeypatch.setattr(dist, name, refuse)
    one, values = Group(), [torch.ones(3)]
    assert (one.rank, one.ranks, one.first, one.device) == (0, 1, True, torch.device("cpu"))
    assert one.sum({"a": 1.5, "b": 2.0}) == {"a": 1.5, "b": 2.0}
    one.add(values)
    one.wait()
    assert values[0].tolist() == [1.0, 1.0, 1.0]
    assert one.agree(7.5) == 7.5


def test_what_torchrun_says_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with group("cpu") as found:
        assert found == Group()
        assert not dist.is_initialized()
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "2")
    calls: list[Any] = []
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **given: calls.append(backend))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: calls.append("destroyed"))

    def used() -> None:
        with group("cpu") as found:
            assert found == Group(2, 3, torch.device("cpu"))
            raise KeyError

    with pytest.raises(KeyError):
        used()
    assert calls == ["gloo", "destroyed"]


@pytest.mark.parametrize("error", [RuntimeError("Connection closed by peer\n  frame #0: ..."), ValueError("Default process group has not been initialized")])
def test_what_backends_raise_is_one_sentence(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*given: Any) -> None:
        raise error

    monkeypatch.setattr(distribute.dist, "all_reduce", gone)
    monkeypatch.setattr(distribute.dist, "barrier", gone)
    monkeypatch.setattr(distribute.dist, "get_backend", lambda: "gloo")
    two = Group(0, 2)
    for call in (lambda: two.sum({"a": 1.0}), lambda: two.add([torch.ones(2)]), lambda: two.agree(1.0), two.wait):
        before = time.monotonic()
        with pytest.raises(UserError) as said:
            call()
        assert str(said.value) == f"another rank is gone ({str(error).splitlines()[0]}); run the same command again: it goes on from the last checkpoint"
        assert time.monotonic() - before < 1
