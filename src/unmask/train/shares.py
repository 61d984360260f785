"""FSDP2, put on from outside: of every parameter, of its gradient and of what the optimizer remembers of it, each rank keeps some rows.

torch's `fully_shard` brings the rows of a layer together just before the layer computes, and of the sum of all ranks' gradients it leaves each
rank its rows. Those are plain tensors to everybody here. Who needs all rows of a tensor (a norm, a matrix to be made orthogonal, a
checkpoint) asks for them by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from unmask.model.encoder import Layer
from unmask.train.distribute import Group
from unmask.train.precision import DTYPES, HALF


@dataclass(frozen=True)
class Shares:
    """Rows as torch.chunk deals them out: the last ranks may have fewer, or none. Alone, all of them."""

    shapes: Mapping[str, torch.Size]  # of the whole parameters
    group: Group = field(default_factory=Group)

    def mine(self, whole: Tensor) -> Tensor:
        """This rank's rows; a number alone is everybody's."""
        each = -(-len(whole) // self.group.ranks) if whole.ndim else 0
        return whole[self.group.rank * each : (self.group.rank + 1) * each] if each else whole

    def whole(self, mine: Tensor, rows: int) -> Tensor:
        """Every rank's rows, one below the other."""
        if self.group.ranks == 1:
            return mine
        padded = mine.new_zeros(-(-rows // self.group.ranks), *mine.shape[1:])
        padded[: len(mine)] = mine
        return self.group.gather(padded)[:rows]

    def norms(self, norms: Tensor) -> Tensor:
        """Of whole tensors, where those of this rank's rows are given."""
        if self.group.ranks == 1:
            return norms
        squares = norms.double().square()
        self.group.add([squares])
        return squares.sqrt().to(norms.dtype)

    def gathered(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """By the names of parameters (`name`, or `name/exp_avg`): the whole tensors, on the CPU of the first rank. The others only give theirs."""
        if self.group.ranks == 1:
            return {name: one.detach() for name, one in tensors.items()}
        found = {}
        for name, mine in tensors.items():
            whole = self.whole(mine.detach(), self.shapes[name.partition("/")[0]][0]) if mine.ndim else mine
            if self.group.first:
                found[name] = whole.cpu()
        return found


def shared(learner: nn.Module, group: Group, kind: str) -> Shares:
    """From now on this rank has its rows alone: each layer's are brought together by themselves, the rest (embedding, heads) as one."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    learner.to(torch.float64 if kind == "float64" else torch.float32)
    shapes = {name: p.shape for name, p in learner.named_parameters()}
    mesh = init_device_mesh(group.device.type, (group.ranks,))
    # Inputs stay what they are: rotary positions must not become bf16.
    policy = MixedPrecisionPolicy(DTYPES[kind] if kind in HALF else None, torch.float32 if kind in HALF else None, cast_forward_inputs=False)
    for part in [*(one for one in learner.modules() if isinstance(one, Layer)), learner]:
        found: Any = fully_shard(part, mesh=mesh, mp_policy=policy)
        found.set_gradient_divide_factor(1.0)  # losses are divided by the labels of all ranks
        found.set_force_sum_reduction_for_comms(True)  # gloo has no other
    return Shares(shapes, group)
