"""Several processes as one: started by torchrun, put on a plain learner from outside.

Each rank computes its share of every step's micro-batches; losses are divided by the labels of all ranks, so the sum of the ranks'
gradients is the gradient of the whole step, on one rank or on many.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from unmask.errors import UserError
from unmask.train.precision import Precision

PATIENCE = timedelta(minutes=10)  # with a rank that does not answer
BUCKET = 8_000_000  # numbers that are sent at once: DDP's 25 MB, about


@dataclass(frozen=True)
class Group:
    """The ranks of a run; alone where nobody started more."""

    rank: int = 0
    ranks: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, values: Mapping[str, float]) -> dict[str, float]:
        """Of all ranks. Every rank asks for the same names."""
        if self.ranks == 1:
            return dict(values)
        found = torch.tensor(list(values.values()), dtype=torch.float64)
        found = found.to(self.device) if dist.get_backend() == "nccl" else found
        self._together(lambda: dist.all_reduce(found))
        return dict(zip(values, found.tolist(), strict=True))

    def add(self, tensors: list[Tensor]) -> None:
        """Each tensor becomes its sum over all ranks."""
        if self.ranks > 1 and tensors:
            self.send(tensors)()

    def send(self, tensors: list[Tensor]) -> Callable[[], None]:
        """Begin to add these up, as one piece; they are the sums once what this returns has been called."""
        flat = torch.cat([one.reshape(-1) for one in tensors])
        work = self._together(partial(dist.all_reduce, flat, async_op=True))

        def arrived() -> None:
            self._together(work.wait)
            for one, new in zip(tensors, flat.split([one.numel() for one in tensors]), strict=True):
                one.copy_(new.view_as(one))

        return arrived

    def gather(self, mine: Tensor) -> Tensor:
        """All ranks' tensors of one shape, one below the other."""
        found = mine.new_empty(self.ranks * len(mine), *mine.shape[1:])
        self._together(lambda: dist.all_gather(list(found.chunk(self.ranks)), mine.contiguous()))
        return found

    def agree(self, value: float) -> float:
        """The first rank's."""
        return value if self.ranks == 1 else self.sum({"value": value if self.first else 0.0})["value"]

    def wait(self) -> None:
        if self.ranks > 1:
            self._together(dist.barrier)

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Around what has FSDP2 speak to the others: an error of the backend's is known by its kind, or by its name in the message."""
        try:
            yield
        except RuntimeError as error:
            if self.ranks == 1 or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
                raise
            raise _gone(error) from None

    def _together(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (RuntimeError, ValueError) as error:  # what gloo and NCCL raise when one of them is gone
            raise _gone(error) from None


def _gone(error: Exception) -> UserError:
    return UserError(f"another rank is gone ({str(error).splitlines()[0]}); run the same command again: it goes on from the last checkpoint")


class Gradients:
    """Added up over all ranks while the backward that makes them still runs (Li et al. 2020, section 3.2).

    torch's DistributedDataParallel adds up what the modules hold: in bf16, and of one part. The masters hold the sum of a step's parts in
    float32, and it is those that go out here. Buckets are the same in every step and go in one order, so that a sum has the same bits
    on all ranks, and again when a run is resumed.
    """

    def __init__(self, group: Group, precision: Precision) -> None:
        self.group, self.precision = group, precision
        self.masters = list(precision.masters.values())
        self.buckets = _buckets(precision.masters)
        self.absent: set[int] = set()  # had no gradient in the step before, such as a pooler that nothing asks: nobody waits for them
        self.missing: list[set[int]] = []
        self.sent: list[Callable[[], None]] = []
        self.sending = False
        for number, bucket in enumerate(self.buckets if group.ranks > 1 else ()):
            for place in bucket:
                hook = partial(self._arrived, number, place)
                precision.inside[place].register_post_accumulate_grad_hook(hook)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Of one part of a step; after the last one the masters hold the gradient of the whole step, of all ranks."""
        self.sending, self.sent = last and self.group.ranks > 1, []
        self.missing = [set(bucket) - self.absent for bucket in self.buckets]
        self.precision.scaled(loss).backward()
        if not self.sending:
            self.precision.gather()
            return
        while len(self.sent) < len(self.buckets):
            self._send()
        for arrived in self.sent:
            arrived()
        self.absent = {place for place, master in enumerate(self.masters) if master.grad is None}

    def _arrived(self, number: int, place: int, parameter: Tensor) -> None:
        if self.sending:
            assert number >= len(self.sent), "a gradient came that the step before did not have, and what it belongs to is sent"
            self.missing[number].discard(place)
            while len(self.sent) < len(self.buckets) and not self.missing[len(self.sent)]:
                self._send()

    def _send(self) -> None:
        bucket = self.buckets[len(self.sent)]
        self.precision.gather(bucket)
        grads = [grad for place in bucket if (grad := self.masters[place].grad) is not None]
        self.sent.append(self.group.send(grads) if grads else lambda: None)


def _buckets(masters: Mapping[str, Tensor]) -> list[list[int]]:
    """Places of parameters, about as backward comes by: from the heads down, then what stands beside the model, and last what embeds for both."""
    names = list(masters)
    late = [names[place].startswith("beside.") + 2 * names[place].startswith("model.embed.") for place in range(len(names))]
    found: list[list[int]] = []
    size = BUCKET
    for place in sorted(range(len(names)), key=lambda place: (late[place], -place)):
        if size >= BUCKET:
            found.append([])
            size = 0
        found[-1].append(place)
        size += masters[names[place]].numel()
    return found


def _store(rank: int, ranks: int) -> Any:
    """Where the ranks of this start find one another; None: where torch has them look.

    torchrun starts processes anew over the store of those that are gone, and gloo would call at the addresses that they left there. So the first
    rank makes up a word for this start and tells it to whoever asks; what is told counts for who asked in these very words.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False, timeout=PATIENCE)  # type: ignore[attr-defined]
    word = uuid.uuid4().hex

    def read(key: str) -> str:
        return store.get(key).decode() if store.check([key]) else ""

    def all_know() -> bool:
        for other in range(1, ranks):
            if asked := read(f"asked/{other}"):
                store.set(f"told/{other}", asked + word)
        return all(read(f"known/{other}") == word for other in range(1, ranks))

    if rank == 0:
        _until(all_know)
    else:
        store.set(f"asked/{rank}", word)
        _until(lambda: read(f"told/{rank}").startswith(word))
        word = read(f"told/{rank}").removeprefix(word)
        store.set(f"known/{rank}", word)
    return dist.PrefixStore(word, store)  # type: ignore[attr-defined]


def _until(met: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE.total_seconds()
    while not met():
        if time.monotonic() > end:
            raise RuntimeError(f"nobody answered for {PATIENCE}")
        time.sleep(0.02)


@contextmanager
def group(device: str | None = None) -> Iterator[Group]:
    """What torchrun says of this process; a GPU each where there are GPUs."""
    ranks, rank, local = (int(os.environ.get(name, usual)) for name, usual in (("WORLD_SIZE", "1"), ("RANK", "0"), ("LOCAL_RANK", "0")))
    cuda = torch.cuda.is_available() and device != "cpu"
    place = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(place)
    if ranks == 1:
        yield Group(device=torch.device(device) if device else place)
        return
    try:
        dist.init_process_group("nccl" if cuda else "gloo", timeout=PATIENCE, store=_store(rank, ranks), rank=rank, world_size=ranks)
    except (RuntimeError, ValueError) as error:
        said = str(error).splitlines()[0]
        raise UserError(f"the {ranks} ranks did not find one another ({said}); see that all of them were started, and that they reach the first") from None
    try:
        yield Group(rank, ranks, place)
        dist.barrier()  # a rank that leaves while another still listens to it ends that one
    finally:
        dist.destroy_process_group()
