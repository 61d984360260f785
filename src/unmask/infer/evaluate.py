"""A model's answers held against what is true, as they come: memory does not grow with the data."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from unmask.data.examples import Example
from unmask.infer.predictor import Predictor
from unmask.objectives.base import name_of
from unmask.tasks.metrics.tally import Tally
from unmask.tasks.tuning import Tuning


def tallied(model: Predictor, tuning: Tuning, examples: Iterable[Example], worst: int = 20) -> Tally:
    """Every outcome of the task on these examples."""
    tally, waiting = tuning.tally(), deque[Example]()
    tally.most = worst

    def asked() -> Iterator[Any]:
        for example in examples:
            waiting.append(example)  # until its answer comes
            yield tuning.given(example)

    for answer in model.stream(name_of(tuning), asked()):
        example = waiting.popleft()
        outcome = tuning.outcome(example, answer)
        tally.add(outcome.gold, outcome.said, chance=outcome.chance, loss=outcome.loss, example=(example, answer))
    return tally
