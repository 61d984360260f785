"""Answer a question from a text: the span that answers it, or none where the model was trained to say so.

Long contexts are read in windows that overlap (Devlin et al. 2018, sections 4.2 and 4.3, and the code published with it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unmask.errors import UserError
from unmask.tasks.base import Answer, Array, Input, Task, Window, owned


@dataclass(frozen=True)
class Span(Answer):
    """`context[start:end]`; an empty text at 0:0 says that the context does not answer the question."""

    text: str
    start: int
    end: int
    score: float


class Spans(Task):
    head = "spans"
    over = "tokens"
    pairs = True

    def windows(self, inputs: Sequence[str | tuple[str, str]]) -> list[Window]:
        length = self.card.length or 512
        pairs = [given for given in inputs if isinstance(given, tuple)]
        for number, (question, context) in enumerate(pairs):
            if not question.strip() or not context.strip():
                raise UserError(f"input {number + 1} has an empty {'question' if not question.strip() else 'context'}; give both")
        room = length - 3 - max(len(e) for e in self.pieces.encode([question for question, _ in pairs])) + 2
        if room < 16:
            raise UserError(f"a question leaves {max(room, 0)} of the model's {length} pieces to read the context with; ask a shorter one")
        stride = min(self.card.windows, room // 2)
        return owned(self.pieces.encode(pairs, length=length, stride=stride, cut="only_second", offsets=True))

    def decode(self, given: Input, windows: Sequence[Window], outputs: Sequence[Array]) -> Span:
        """The best start and end together. The score is their probability among all starts and ends of all windows."""
        assert isinstance(given, tuple)
        longest = int(self.options.get("longest", 30))
        allow = self.options.get("none")
        allow = "none" in self.card.thresholds if allow is None else allow
        places = [_context(window) for window in windows]
        starts = [logits[place, 0] for logits, place in zip(outputs, places, strict=True)]
        ends = [logits[place, 1] for logits, place in zip(outputs, places, strict=True)]
        empty = min(float(logits[0].sum()) for logits in outputs)  # [CLS], where no answer is trained to point
        total = [_logsum([*parts, *([logits[:1, i] for logits in outputs] if allow else [])]) for i, parts in enumerate((starts, ends))]
        best, window, first, last = max(_best(s, e, longest, i) for i, (s, e) in enumerate(zip(starts, ends, strict=True)))
        if allow and empty - best > self.card.thresholds.get("none", 0.0):
            return Span("", 0, 0, float(np.exp(empty - sum(total))))
        offsets = [windows[window].encoding.offsets[i] for i in places[window]]
        start, end = offsets[first][0], offsets[last][1]
        return Span(given[1][start:end], start, end, float(np.exp(best - sum(total))))


def _context(window: Window) -> list[int]:
    """Where the context's pieces stand in the window."""
    return [i for i, which in enumerate(window.encoding.sequence_ids) if which == 1]


def _best(starts: Array, ends: Array, longest: int, window: int) -> tuple[float, int, int, int]:
    """The highest start + end with start <= end < start + longest: (score, window, start, end)."""
    scores = starts[:, None] + ends[None, :]
    allowed = np.triu(np.ones_like(scores, bool)) & ~np.triu(np.ones_like(scores, bool), longest)
    place = int(np.argmax(np.where(allowed, scores, -np.inf)))
    first, last = divmod(place, len(ends))
    return float(scores[first, last]), window, first, last


def _logsum(parts: Sequence[Array]) -> float:
    values = np.concatenate(parts).astype(np.float64)
    top = values.max()
    return float(top + np.log(np.exp(values - top).sum()))
