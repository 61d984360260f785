"""Answer a question from a text: the span that answers it, or none where the model was trained to say so.

Long contexts are read in windows that overlap (Devlin et al. 2018, sections 4.2 and 4.3, and the code published with it).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor

from unmask.data.batch import Batch
from unmask.data.examples import Example, Examples
from unmask.data.samples import Sample
from unmask.errors import UserError
from unmask.model.card import Card
from unmask.objectives.base import Learner
from unmask.tasks.base import Answer, Array, Input, Task, Window, owned, quote, spelled
from unmask.tasks.metrics.tally import Tally
from unmask.tasks.tuning import Outcome, Tuning, among, sample
from unmask.tokenizer import Encoding

LEAST = 16  # pieces of the context that a window must have room for


@dataclass(frozen=True)
class Span(Answer):
    """`context[start:end]`; an empty text at 0:0 says that the context does not answer the question."""

    text: str
    start: int
    end: int
    score: float

    def __str__(self) -> str:
        return f"{self.text or 'no answer'} {self.score:.3f}"


class Spans(Task):
    """`longest` is how many pieces an answer may have; `none`, whether there may be no answer (None: where the folder has a threshold for it)."""

    head = "spans"
    over = "tokens"
    pairs = True
    defaults: ClassVar[Mapping[str, Any]] = {"longest": 30, "none": None}

    def windows(self, inputs: Sequence[str | tuple[str, str]]) -> list[Window]:
        self.whole("longest")  # a wrong one is told before the model runs
        pairs = [cast(tuple[str, str], given) for given in inputs]
        length = self.card.length or 512
        rooms = self._rooms(pairs, length)
        strides = [min(self.card.windows, room // 2) for room in rooms]
        found: list[list[Window]] = [[] for _ in pairs]
        for stride in sorted(set(strides)):  # each question has its own: an answer must not hang on what else is asked
            chosen = [i for i, one in enumerate(strides) if one == stride]
            encodings = self.pieces.encode([pairs[i] for i in chosen], length=length, stride=stride, cut="only_second", offsets=True)
            for i, encoding in zip(chosen, encodings, strict=True):
                if not any(_places(part, pairs[i][1]) for part in (encoding, *encoding.overflowing)):
                    raise UserError(f"the context of the question {quote(pairs[i][0])} is empty; give the text to answer it from")
                found[i] = owned(encoding, i, rooms[i] - stride)
        return [window for windows in found for window in windows]

    def _rooms(self, pairs: Sequence[tuple[str, str]], length: int) -> list[int]:
        """How many pieces each question leaves a window for the context."""
        rooms = []
        for (question, context), alone in zip(pairs, self.pieces.encode([(question, "") for question, _ in pairs]), strict=True):
            if 0 not in alone.sequence_ids:
                raise UserError(f"the question to the context {quote(context)} is empty; ask something")
            rooms.append(length - len(alone))
            if rooms[-1] < LEAST:
                raise UserError(f"the question {quote(question)} leaves {max(rooms[-1], 0)} of the model's {length} pieces for the context; ask a shorter one")
        return rooms

    def decode(self, given: Input, windows: Sequence[Window], outputs: Sequence[Array]) -> Span:
        """The best start and end together. The score is their probability among all starts and ends of all windows."""
        context = cast(tuple[str, str], given)[1]
        threshold, allow = self.card.thresholds.get("none", 0.0), self.options["none"]
        allow = "none" in self.card.thresholds if allow is None else allow
        places = [_places(window.encoding, context) for window in windows]
        inside = [logits[place] for logits, place in zip(outputs, places, strict=True)]
        heads = [logits[:1] for logits in outputs]  # [CLS], where no answer is trained to point
        total = _logsum(np.concatenate([*inside, *heads] if allow else inside))
        window, (best, first, last) = max(enumerate(_best(logits, self.whole("longest")) for logits in inside), key=lambda found: found[1][0])
        none = min(float(logits.sum()) for logits in heads)
        if allow and none - best > threshold:
            return Span("", 0, 0, float(np.exp(none - total)))
        offsets = windows[window].encoding.offsets
        start, end = spelled(context, offsets[places[window][first]][0], offsets[places[window][last]][1])
        return Span(context[start:end], start, end, float(np.exp(best - total)))


def _places(encoding: Encoding, context: str) -> list[int]:
    """The pieces of the context in which an answer may begin or end: not those that are nothing but space."""
    offsets = encoding.offsets
    return [i for i, which in enumerate(encoding.sequence_ids) if which == 1 and context[slice(*offsets[i])].strip()]


def _best(logits: Array, longest: int) -> tuple[float, int, int]:
    """The highest start + end with start <= end < start + longest, of (pieces, 2): (score, start, end)."""
    starts, ends = logits.T
    best = (float("-inf"), 0, 0)
    for more in range(min(longest, len(starts))):
        scores = starts[: len(starts) - more] + ends[more:]
        first = int(scores.argmax())
        if scores[first] > best[0]:
            best = (float(scores[first]), first, first + more)
    return best


def _logsum(logits: Array) -> float:
    """log of the sum over all starts times the sum over all ends: (pieces, 2) -> a number."""
    values = logits.astype(np.float64)
    top = values.max(0)
    return float((top + np.log(np.exp(values - top).sum(0))).sum())


@dataclass(frozen=True)
class Answering(Tuning):
    """Where the answer begins and where it ends, each a softmax over a window's pieces; a window without it points at [CLS]."""

    none: bool = False  # whether there are questions without an answer; known from the data

    terms: ClassVar[tuple[str, ...]] = ("spans",)

    def fitted(self, examples: Examples) -> Self:
        return replace(self, none=self.none or any(not example.answer for example in examples))

    def heads(self, vocabulary: int) -> dict[str, int]:
        return {"spans": 2}

    def card(self, card: Card) -> Card:
        return replace(card, task="spans", thresholds={"none": 0.0} if self.none else {})

    def carded(self, card: Card) -> Self:
        return replace(self, none="none" in card.thresholds)

    def tally(self) -> Tally:
        return Tally("spans", none=self.none)

    def outcome(self, example: Example, answer: Any) -> Outcome:
        return Outcome([text for _, text in example.answer], answer.text, answer.score)

    def samples(self, asked: Task, examples: Iterable[Example]) -> Iterable[Sample]:
        chosen = list(examples)
        for window in asked.windows([example.given for example in chosen]):
            example = chosen[window.owner]
            place = _held(window.encoding, *example.answer[0]) if example.answer else (0, 0)
            yield sample([window.encoding], {"spans": np.array([place])})

    def losses(self, learner: Learner, states: Tensor, batch: Batch) -> dict[str, Tensor]:
        labels = batch.targets["spans.labels"]  # (B, 2)
        logits = batch.layout.tokens(learner.model.read("spans", states, batch.layout))
        logits = logits if logits.dtype == torch.float64 else logits.float()
        loss, right = among(logits, batch.layout.lengths.to(logits.device), labels)
        return {"spans": loss, "spans.right": right}


def _held(encoding: Encoding, start: int, text: str) -> tuple[int, int]:
    """The pieces that an answer begins and ends with; 0, 0 where this window does not hold all of it."""
    inside = [i for i, which in enumerate(encoding.sequence_ids) if which == 1]
    first = [i for i in inside if encoding.offsets[i][1] > start]
    last = [i for i in inside if encoding.offsets[i][0] < start + len(text)]
    whole = first and last and encoding.offsets[inside[0]][0] <= start and encoding.offsets[inside[-1]][1] >= start + len(text.rstrip())
    return (first[0], last[-1]) if whole and first[0] <= last[-1] else (0, 0)
