"""Several processes as one: what they add up is added up, who is left alone is told so at once, and who is started again goes on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import runs
from unmask.errors import UserError
from unmask.model import store
from unmask.train import distribute, log, precision
from unmask.train.distribute import Gradients, Group, group
from unmask.train.precision import Precision

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
    found["gathered"] = g.gather(torch.full((2, 3), float(g.rank + 1)).t()).tolist()
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
    assert one["gathered"] == two["gathered"] == [[1.0, 1.0]] * 3 + [[2.0, 2.0]] * 3
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

    for name in ("all_reduce", "all_gather", "barrier", "get_backend"):
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
    def gone(*given: Any, **more: Any) -> None:
        raise error

    monkeypatch.setattr(distribute.dist, "all_reduce", gone)
    monkeypatch.setattr(distribute.dist, "all_gather", gone)
    monkeypatch.setattr(distribute.dist, "barrier", gone)
    monkeypatch.setattr(distribute.dist, "get_backend", lambda: "gloo")
    two = Group(0, 2)
    calls = (lambda: two.sum({"a": 1.0}), lambda: two.add([torch.ones(2)]), lambda: two.gather(torch.ones(2)), lambda: two.agree(1.0), two.wait)
    for call in calls:
        before = time.monotonic()
        with pytest.raises(UserError) as said:
            call()
        assert str(said.value) == f"another rank is gone ({str(error).splitlines()[0]}); run the same command again: it goes on from the last checkpoint"
        assert time.monotonic() - before < 1


def test_what_fsdp_is_told_is_one_sentence_too() -> None:
    """It speaks to the others in the middle of a forward; what else goes wrong there is no word from them."""
    gloo, nccl, ours = RuntimeError("[gloo/transport/tcp/pair.cc:537] reset"), dist.DistBackendError("NCCL timed out"), RuntimeError("shapes")
    for error, who, kind in ((gloo, Group(0, 2), UserError), (nccl, Group(0, 2), UserError), (ours, Group(0, 2), RuntimeError), (gloo, Group(), RuntimeError)):
        with pytest.raises(kind) as said, who.heard():
            raise error
        assert said.value is error if kind is RuntimeError else str(said.value).startswith(f"another rank is gone ({error}); run the same")


def test_ranks_that_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(*given: Any, **more: Any) -> None:
        raise dist.DistNetworkError("The client socket has timed out after 600s\nmore")

    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setattr(dist, "init_process_group", alone)
    says = (
        r"the 3 ranks did not find one another \(The client socket has timed out after 600s\); see that all of them were started, and that they reach the first"
    )
    with pytest.raises(UserError, match=says), group("cpu"):
        pass


# ---- gradients on their way while the backward runs


class Net(nn.Module):
    """Named as a learner is. Nothing asks the pooler, until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
        self.model = nn.ModuleDict({"embed": nn.Linear(4, 4, bias=False), "encoder": layers, "pooler": nn.Linear(4, 4), "heads": nn.Linear(4, 2)})
        self.beside = nn.ModuleDict({"rtd": nn.Linear(4, 2)})

    def forward(self, x: Tensor, pooled: bool = False) -> Tensor:
        entered = self.model["embed"](x)
        found = self.model["encoder"](entered)
        found = self.model["heads"](self.model["pooler"](found) if pooled else found)
        return (found + self.beside["rtd"](entered)).float().square().sum()


class Flight:
    """A sum over two ranks that hold the same; it is there once it was waited for."""

    def __init__(self, flat: Tensor) -> None:
        self.flat = flat

    def wait(self) -> None:
        self.flat *= 2


def learned(net: Net, kind: str, ranks: int) -> tuple[Precision, Gradients]:
    held = Precision(net, kind)
    return held, Gradients(Group(0, ranks), held)


def parts(kind: str, count: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(5, 4, generator=draw).to({"bf16": torch.bfloat16, "fp16": torch.float16}.get(kind, torch.float32)) for _ in range(count)]


@pytest.mark.parametrize("bucket", [1, 30, 10**6])
@pytest.mark.parametrize("kind", ["float32", "bf16", "fp16"])
def test_gradients_of_all_parts_and_ranks(kind: str, bucket: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribute, "BUCKET", bucket)
    monkeypatch.setattr(precision, "SCALE", 8.0)
    monkeypatch.setattr(dist, "all_reduce", lambda flat, async_op: Flight(flat))
    alone, expected = learned(Net(), kind, 1)
    two, found = learned(Net(), kind, 2)
    for _ in range(2):
        for held, gradients in ((alone, expected), (two, found)):
            for master in held.masters.values():
                master.grad = None
            for number, x in enumerate(parts(kind, 3), 1):
                gradients.backward(held.module(x), last=number == 3)
        for name, master in two.masters.items():
            one = alone.masters[name].grad
            assert (master.grad is None) == (one is None) == ("pooler" in name)
            if one is not None:
                assert master.grad is not None
                assert torch.equal(master.grad, 2 * one), name
                assert float(one.abs().max()) > 0


def test_they_are_sent_before_the_backward_is_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in a bucket of its own. Of the pooler, which gets none, it is not known at the first step; nobody waits for it at the second."""
    events: list[Any] = []

    def sent(flat: Tensor, async_op: bool) -> Flight:
        events.append(flat.numel())
        return Flight(flat)

    monkeypatch.setattr(distribute, "BUCKET", 1)
    monkeypatch.setattr(dist, "all_reduce", sent)
    held, gradients = learned(Net(), "bf16", 2)
    held.inside[0].register_hook(lambda grad: events.append("embed"))  # type: ignore[no-untyped-call]
    heads, layers, beside = [2, 8], [4, 16] * 3, [2, 8]
    for expected in ([*heads, "embed", *layers, *beside, 16], [*heads, *layers, *beside, "embed", 16]):
        for part, last in zip(parts("bf16", 2), (False, True), strict=True):
            events.clear()
            gradients.backward(held.module(part), last=last)
            assert events == (expected if last else ["embed"])
        for master in held.masters.values():
            master.grad = None
    with pytest.raises(AssertionError, match="a gradient came that the step before did not have"):
        gradients.backward(held.module(parts("bf16", 1)[0], pooled=True), last=True)


# ---- processes that are started again


def test_a_new_start_does_not_meet_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over one store, as torchrun's; in the second start the first rank is there before the others, in the third after them."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True)  # type: ignore[attr-defined]
    for name, value in (("TORCHELASTIC_USE_AGENT_STORE", "True"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", str(server.port))):
        monkeypatch.setenv(name, value)
    words = []
    for late in ((), (1, 2), (0,)):
        found: dict[int, Any] = {}

        def start(rank: int, late: tuple[int, ...] = late, found: dict[int, Any] = found) -> None:
            time.sleep(0.3 * (rank in late))
            found[rank] = distribute._store(rank, 3)

        threads = [threading.Thread(target=start, args=(rank,), daemon=True) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert sorted(found) == [0, 1, 2]
        assert not any(one.check(["place/1"]) for one in found.values()), "left by an earlier start"
        found[1].set("place/1", "here")
        assert [found[rank].get("place/1") for rank in range(3)] == [b"here"] * 3
        words.append(found[0].get("place/1"))
    assert len(words) == 3


def test_without_torchruns_store_torch_looks_where_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    assert distribute._store(0, 2) is None


def torchrun(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", *words, "-m", "unmask", "train", str(folder), "--device", "cpu"]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def started(parent: int, rank: int) -> int:
    """The process of that rank."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if int((place / "stat").read_text().rpartition(")")[2].split()[1]) == parent and f"\0RANK={rank}\0" in (place / "environ").read_text():
                return int(place.name)
        except OSError:
            continue
    raise AssertionError(f"no rank {rank}")


@pytest.mark.skipif(sys.platform != "linux", reason="who is whose child is read in /proc")
@pytest.mark.parametrize("shard", [False, pytest.param(True, marks=pytest.mark.evidence)])
def test_a_rank_that_is_killed_comes_back(shard: bool, shards: Path, tmp_path: Path) -> None:
    """Two nodes of one rank each make a whole run; two ranks of one node make it too though one of them is killed: the weights are the same bit for bit."""
    run = runs.small(shards, stop="60", save="3", evaluate_tokens=0, shard=shard)
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.json").write_text(json.dumps(run.json()))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = f"127.0.0.1:{free.getsockname()[1]}"
    nodes = [torchrun(tmp_path / "whole", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", meeting, "--rdzv-id", "a") for _ in range(2)]
    for node in nodes:
        said = node.communicate(timeout=120)[1]
        assert node.returncode == 0, said
    killed = torchrun(tmp_path / "killed", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3")
    while not list(tmp_path.glob("killed/checkpoints/step-*")) and killed.poll() is None:
        time.sleep(0.01)
    os.kill(started(killed.pid, 1), signal.SIGKILL)
    said = killed.communicate(timeout=120)[1]
    assert killed.returncode == 0, said
    assert "Traceback" not in said, said
    assert [line for line in said.split("\n") if line.startswith("unmask: ")] != [], "the rank that was left says why it ends"
    assert all(line.startswith("unmask: another rank is gone (") for line in said.split("\n") if line.startswith("unmask: "))
    whole, other = (store.load(tmp_path / name).model.state_dict() for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], other[name]) for name in whole)
    assert [row["step"] for row in log.rows(tmp_path / "killed")] == list(range(60))
