"""How a batch lies in memory, and attention over it: the only place that knows either, and the only one that picks a kernel.

Letters: B sequences, S tokens in a padded row, T tokens in all, N heads, H width of a head, D width of the model.

`Packed` lays sequences end to end, `(T, ...)`, and computes nothing for padding; `Padded` is the usual `(B, S, ...)`;
`Recording` is either, and keeps the attention maps. A reach says how far a token sees to its left and right: it is a
value, so that full, local, causal and anti-causal attention are one code.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

Reach = tuple[int, int]
FULL: Reach = (-1, -1)
CAUSAL: Reach = (-1, 0)
ANTICAUSAL: Reach = (0, -1)


def local(width: int) -> Reach:
    """Each token sees as many to either side."""
    return (width, width)


class Layout(ABC):
    """Where the tokens of each sequence lie. `at`, `last`, `sum` and `max` reduce each sequence to one row: (B, ...)."""

    lengths: Tensor  # (B,)

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, reach: Reach = FULL, dropout: float = 0.0) -> Tensor:
        """Softmax attention inside each sequence: q, k, v and the answer are (T, N, H), or (B, S, N, H) when padded."""

    @abstractmethod
    def lay(self, rows: Tensor) -> Tensor:
        """(B, S, D) of sequences that are all full, as images are, laid as this layout lays them."""

    @abstractmethod
    def tokens(self, x: Tensor) -> Tensor:
        """The rows of real tokens, sequence after sequence: (T, ...)."""

    @abstractmethod
    def at(self, x: Tensor, place: int = 0) -> Tensor:
        """The token at that place of each sequence."""

    @abstractmethod
    def last(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def sum(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def max(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def to(self, device: torch.device | str) -> Layout: ...

    def split(self, x: Tensor) -> list[Tensor]:
        """One tensor a sequence, (length, ...)."""
        return list(self.tokens(x).split(self.lengths.tolist()))


@dataclass(frozen=True, eq=False)
class Padded(Layout):
    """(B, S, ...), sequences at the left of their rows; `mask` (B, S) is true for real tokens, None when all are."""

    batch: int
    width: int
    mask: Tensor | None = None

    @property
    def lengths(self) -> Tensor:  # type: ignore[override]
        return torch.full((self.batch,), self.width) if self.mask is None else self.mask.sum(1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, reach: Reach = FULL, dropout: float = 0.0) -> Tensor:
        seen = _seen(self.width, reach, q.device)
        if self.mask is not None:
            real = self.mask[:, None, None, :]
            # Under a band, a padding token far from every real one would see nothing, and a softmax over nothing is NaN: it sees itself.
            seen = real if seen is None else real & seen | torch.eye(self.width, dtype=torch.bool, device=q.device)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout).transpose(1, 2)

    def lay(self, rows: Tensor) -> Tensor:
        return rows

    def tokens(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1) if self.mask is None else x[self.mask]

    def at(self, x: Tensor, place: int = 0) -> Tensor:
        return x[:, place]

    def last(self, x: Tensor) -> Tensor:
        return x[torch.arange(self.batch, device=x.device), self.lengths.to(x.device) - 1]

    def sum(self, x: Tensor) -> Tensor:
        return x.sum(1) if self.mask is None else x.masked_fill(~self.mask[..., None], 0).sum(1)

    def max(self, x: Tensor) -> Tensor:
        return (x if self.mask is None else x.masked_fill(~self.mask[..., None], float("-inf"))).amax(1)

    def to(self, device: torch.device | str) -> Padded:
        return self if self.mask is None else replace(self, mask=self.mask.to(device, non_blocking=True))


@dataclass(frozen=True, eq=False)
class Packed(Layout):
    """(T, ...): sequence i is rows bounds[i]:bounds[i+1]."""

    bounds: Tensor  # (B+1,) int32
    longest: int
    groups: tuple[tuple[int, int], ...]  # (count, length) of neighbours of equal length; each is one call of a kernel on a CPU

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Packed:
        bounds = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
        groups = tuple((len(list(run)), length) for length, run in itertools.groupby(lengths))
        return cls(bounds, max(lengths), groups)

    @property
    def lengths(self) -> Tensor:  # type: ignore[override]
        return self.bounds.diff().long()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, reach: Reach = FULL, dropout: float = 0.0) -> Tensor:
        if dropout == 0 and _has_varlen(q):
            from torch.nn.attention.varlen import varlen_attn

            return varlen_attn(q, k, v, self.bounds, self.bounds, self.longest, self.longest, window_size=reach)  # type: ignore[return-value]
        done, start = [], 0
        for count, length in self.groups:
            rows = slice(start, start + count * length)
            one, two, three = (t[rows].view(count, length, *t.shape[1:]) for t in (q, k, v))
            done.append(Padded(count, length).attend(one, two, three, reach, dropout).flatten(0, 1))
            start = rows.stop
        return done[0] if len(done) == 1 else torch.cat(done)

    def lay(self, rows: Tensor) -> Tensor:
        return rows.flatten(0, 1)

    def tokens(self, x: Tensor) -> Tensor:
        return x

    def at(self, x: Tensor, place: int = 0) -> Tensor:
        return x[self.bounds[:-1] + place]

    def last(self, x: Tensor) -> Tensor:
        return x[self.bounds[1:] - 1]

    def sum(self, x: Tensor) -> Tensor:
        return torch.segment_reduce(x, "sum", offsets=self.bounds.long())

    def max(self, x: Tensor) -> Tensor:
        return torch.segment_reduce(x, "max", offsets=self.bounds.long())

    def to(self, device: torch.device | str) -> Packed:
        return replace(self, bounds=self.bounds.to(device, non_blocking=True))


@dataclass(frozen=True, eq=False)
class Recording(Layout):
    """Another layout that also keeps every attention map: `maps[layer][i]` is (N, length, length) of sequence i.

    The answer still comes from the inner layout's own kernel; the maps are computed beside it from the same q and k.
    """

    inner: Layout
    maps: list[list[Tensor]] = field(default_factory=list)

    @property
    def lengths(self) -> Tensor:  # type: ignore[override]
        return self.inner.lengths

    def attend(self, q: Tensor, k: Tensor, v: Tensor, reach: Reach = FULL, dropout: float = 0.0) -> Tensor:
        pairs = zip(self.inner.split(q), self.inner.split(k), strict=True)
        self.maps.append([_map(query, key, reach) for query, key in pairs])
        return self.inner.attend(q, k, v, reach, dropout)

    def lay(self, rows: Tensor) -> Tensor:
        return self.inner.lay(rows)

    def tokens(self, x: Tensor) -> Tensor:
        return self.inner.tokens(x)

    def at(self, x: Tensor, place: int = 0) -> Tensor:
        return self.inner.at(x, place)

    def last(self, x: Tensor) -> Tensor:
        return self.inner.last(x)

    def sum(self, x: Tensor) -> Tensor:
        return self.inner.sum(x)

    def max(self, x: Tensor) -> Tensor:
        return self.inner.max(x)

    def to(self, device: torch.device | str) -> Recording:
        return replace(self, inner=self.inner.to(device))


def _has_varlen(q: Tensor) -> bool:
    """Whether torch's variable-length kernel takes it: half precision, widths of whole eights, Ampere or later."""
    fits = q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256
    return fits and torch.cuda.get_device_capability(q.device) >= (8, 0)


def _seen(length: int, reach: Reach, device: torch.device) -> Tensor | None:
    """(S, S), true where row i sees column j; None when every token sees all."""
    left, right = (length if way < 0 else way for way in reach)
    if min(left, right) >= length - 1:
        return None
    ahead = torch.arange(length, device=device)[None, :] - torch.arange(length, device=device)[:, None]
    return (-left <= ahead) & (ahead <= right)


def _map(q: Tensor, k: Tensor, reach: Reach) -> Tensor:
    """softmax(q k' / sqrt(H)) of one sequence, in float32: (N, S, S)."""
    scores = torch.einsum("snh,tnh->nst", q.float(), k.float()) * q.shape[-1] ** -0.5
    seen = _seen(q.shape[0], reach, q.device)
    return (scores if seen is None else scores.masked_fill(~seen, float("-inf"))).softmax(-1)
