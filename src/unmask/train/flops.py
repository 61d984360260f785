"""What a run computes for each token it reads: a product of two numbers and its sum are two operations.

A weight that multiplies a row costs two on the way there and four on the way back (one for the row, one for the weight). Only what is asked
for counts: no padding, no token that a reach leaves out, no row that a head does not read.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import nn

from unmask.model.encoder import EncoderConfig
from unmask.model.layout import Reach
from unmask.model.model import Model
from unmask.objectives.base import Learner, Numbers


def of_token(learner: Learner, lengths: Numbers, labels: Mapping[str, float]) -> float:
    """Forward and backward, among sequences of these lengths, where each term has so many labels a token."""
    models = [one for one in (learner.model, *learner.beside.values()) if isinstance(one, Model)]
    heads = [(term, head) for one in learner.objectives for term, head in one.answering(learner).items()]
    return sum(_trunk(one, lengths) for one in models) + sum(6 * labels.get(term, 0.0) * weights(head) for term, head in heads)


def _trunk(model: Model, lengths: Numbers) -> float:
    shape = model.config.encoder
    products = 6 * (weights(model.encoder) * shape.depth / shape.layers + weights(model.embed.project))
    if not isinstance(shape, EncoderConfig):  # it attends to nothing
        return products
    return products + 12 * shape.width * sum(seen(lengths, shape.reach[i % len(shape.reach)]) for i in range(shape.depth))


def seen(lengths: Numbers, reach: Reach) -> float:
    """How many tokens one sees, itself too, on average over all of them."""
    sides = [np.minimum(lengths, way) if way >= 0 else lengths for way in reach]
    return float(1 + sum((side * lengths - side * (side + 1) / 2).sum() for side in sides) / max(lengths.sum(), 1))


def weights(module: nn.Module) -> int:
    """Of its matrices; biases and norms cost next to nothing."""
    return sum(p.numel() for p in module.parameters() if p.ndim > 1)
