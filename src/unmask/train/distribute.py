"""Several processes as one: started by torchrun, put on a plain learner from outside.

Each rank computes its share of every step's micro-batches; losses are divided by the labels of all ranks, so the sum of the ranks'
gradients is the gradient of the whole step, on one rank or on many.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from unmask.errors import UserError


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
        """Each tensor becomes its sum over all ranks, in few large pieces."""
        if self.ranks == 1:
            return
        for start in range(0, len(tensors), 64):
            some = tensors[start : start + 64]
            flat = torch.cat([one.reshape(-1) for one in some])
            self._together(partial(dist.all_reduce, flat))
            for one, new in zip(some, flat.split([one.numel() for one in some]), strict=True):
                one.copy_(new.view_as(one))

    def agree(self, value: float) -> float:
        """The first rank's."""
        return value if self.ranks == 1 else self.sum({"value": value if self.first else 0.0})["value"]

    def wait(self) -> None:
        if self.ranks > 1:
            self._together(dist.barrier)

    def _together(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (RuntimeError, ValueError) as error:  # what gloo and NCCL raise when one of them is gone
            raise UserError(f"another rank is gone ({str(error).splitlines()[0]}); run the same command again: it goes on from the last checkpoint") from None


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
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(minutes=10))
    try:
        yield Group(rank, ranks, place)
        dist.barrier()  # a rank that leaves while another still listens to it ends that one
    finally:
        dist.destroy_process_group()
