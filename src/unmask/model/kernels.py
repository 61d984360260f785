"""The matrix product of a linear layer, by the fastest library there is for where it runs. Attention's kernels are layout's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
