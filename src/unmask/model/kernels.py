"""What a layer computes, by the fastest code there is for where it runs: matrix products, and what stands between them. Attention's kernels are layout's.

On a GPU, in half precision, the passes between matrix products are our own kernels' (`fused`). Everywhere else, and wherever something hangs on a
module that a kernel would pass by (hooks, a subclass, autocast), the modules are called as torch has them.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

try:
    from unmask.model import fused as own
except ImportError:  # torch brings Triton where there is CUDA
    OWN = False
else:
    OWN = torch.version.cuda is not None

ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """`layer(x)`, computed in the dtype of its weight, so that what is added up from layer to layer may stay in float32.

    On a CPU torch gives float32 products to MKL, which on AMD's cores does not use all of their width: oneDNN is 1.1x as
    fast there. Its operator has no gradient and belongs to no export, so it serves only where plain answers are computed.
    """
    weight = layer.weight
    x = x.to(weight.dtype)
    plain = x.device.type == "cpu" and x.dtype == torch.float32 and type(layer) is nn.Linear
    hooked = layer._forward_hooks or layer._forward_pre_hooks
    if ONEDNN and plain and not hooked and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return torch.ops.mkldnn._linear_pointwise(x, weight, layer.bias, "none", [], "")
    return layer(x)


def fused(x: Tensor) -> bool:
    """Whether our own kernels take it: half precision, widths of whole eights, Ampere or later."""
    fits = OWN and x.is_cuda and x.dtype in (torch.float16, torch.bfloat16) and x.shape[-1] % 8 == 0 and x.is_contiguous() and x.numel() > 0
    return fits and not torch.is_autocast_enabled("cuda") and torch.cuda.get_device_capability(x.device) >= (8, 0)


def activated(up: nn.Linear, x: Tensor) -> Tensor:
    """gelu(up(x)), of the exact GELU."""
    if up.bias is not None and up.out_features % 8 == 0 and _bare(up, nn.Linear, x) and fused(x):
        return own.Activated.apply(x.flatten(0, -2), up.weight, up.bias).unflatten(0, x.shape[:-1])
    return F.gelu(linear(up, x))


def split(qkv: nn.Linear, x: Tensor, heads: int, *, turned: bool = False) -> tuple[Tensor, ...]:
    """Query, key and value: (..., N, H) each. What comes next, where they are turned or normed, torch's compiler puts into one pass with their gradients."""
    if not turned and qkv.bias is not None and _bare(qkv, nn.Linear, x) and fused(x):
        return tuple(one.unflatten(0, x.shape[:-1]) for one in own.Split.apply(x.flatten(0, -2), qkv.weight, qkv.bias, heads))
    return linear(qkv, x).unflatten(-1, (3, heads, -1)).unbind(-3)


def added_norm(norm: nn.Module, x: Tensor, branch: Tensor) -> Tensor:
    """norm(x + branch)."""
    if isinstance(norm, nn.LayerNorm) and _takes(norm, x, branch):
        return own.AddedNorm.apply(x.flatten(0, -2), branch.flatten(0, -2), norm.weight, norm.bias, norm.eps).unflatten(0, x.shape[:-1])
    return norm(x + branch)


def added_norm_for_two(norm: nn.Module, x: Tensor, branch: Tensor) -> tuple[Tensor, Tensor]:
    """The same for two readers, one each: backward then reads their gradients apart, which saves a pass that only adds them up."""
    if isinstance(norm, nn.LayerNorm) and _takes(norm, x, branch):
        one, two = own.AddedNormForTwo.apply(x.flatten(0, -2), branch.flatten(0, -2), norm.weight, norm.bias, norm.eps)
        return one.unflatten(0, x.shape[:-1]), two.unflatten(0, x.shape[:-1])
    found = norm(x + branch)
    return found, found


def _takes(norm: nn.LayerNorm, x: Tensor, branch: Tensor) -> bool:
    alike = branch.dtype == x.dtype and branch.shape == x.shape and tuple(norm.normalized_shape) == x.shape[-1:]
    return alike and norm.weight is not None and norm.bias is not None and _bare(norm, nn.LayerNorm, x) and fused(x) and x.shape[-1] <= own.WIDEST


def _bare(layer: nn.Linear | nn.LayerNorm, kind: type[nn.Module], x: Tensor) -> bool:
    """Whether nothing hangs on it, and it computes in the dtype that comes."""
    hooked = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    return type(layer) is kind and not hooked and layer.weight.dtype == x.dtype
