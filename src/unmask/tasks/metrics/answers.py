"""Answers to questions as SQuAD's own scripts count them (evaluate-v1.1, evaluate-v2.0), as shares of one and not of a hundred."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unmask.tasks.metrics.scores import Array, paired

ARTICLES = re.compile(r"\b(a|an|the)\b")  # whole words: a Hangul syllable is a letter too, and keeps the a in a형
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Lower case, without ASCII punctuation, articles and more than one space. Nothing else: other scripts stay as they are."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def accepted(gold: Sequence[str], none: bool = False) -> Sequence[str]:
    """The answers that count; where there is none, the right answer is no answer.

    `none` says that the data has such questions: there evaluate-v2.0 leaves out answers that are nothing but punctuation or an article
    (SQuAD's dev set has three "."), which evaluate-v1.1 lets pass.
    """
    return [text for text in gold if normalised(text) or not none] or [""]


def exact(gold: Sequence[str], said: str, none: bool = False) -> float:
    """1 where it is one of the accepted answers."""
    return float(any(normalised(text) == normalised(said) for text in accepted(gold, none)))


def overlap_of_words(gold: Sequence[str], said: str, none: bool = False) -> float:
    """F1 of the words, the best over the accepted answers."""
    return max(_words_f1(normalised(text).split(), normalised(said).split()) for text in accepted(gold, none))


def _words_f1(gold: list[str], said: list[str]) -> float:
    if not gold or not said:
        return float(gold == said)  # no answer is right or wrong, nothing between
    shared = (Counter(gold) & Counter(said)).total()
    return 2 * shared / (len(gold) + len(said))


@dataclass(frozen=True)
class Threshold:
    value: float  # no answer is said where the chance of none is above it
    score: float  # what all questions then score


def best_threshold(scores: Sequence[float], said: Sequence[str], answerable: Sequence[bool], none: Sequence[float]) -> Threshold:
    """evaluate-v2.0's search (best_exact_thresh, best_f1_thresh), on validation: `scores` are of the answers, `none` says how likely there is none.

    It begins with no answer to any question and goes through them from the least likely none. Equal chances are gone through one by
    one as there, so that with many of them the score found is a little more than any threshold reaches.
    """
    values, chances = (one.astype(np.float64) for one in paired(scores, none))
    there = np.asarray(answerable, bool)
    gains = np.where(there, values, -np.array([bool(text) for text in said], np.float64))
    order = np.argsort(chances, kind="stable")
    totals = np.cumsum(np.concatenate([[np.sum(~there)], gains[order]]))  # added up in their order: what is equal there is equal here
    best = int(np.argmax(totals))
    # There it begins at 0, which suits probabilities; differences of logits lie below it too.
    value = chances[order[best - 1]] if best else min(0.0, np.nextafter(chances.min(), -np.inf))
    return Threshold(float(value), float(totals[best] / len(totals[1:])))


def with_none(scores: Array, answerable: Array, none: Array, threshold: float) -> Array:
    """The scores where no answer is said above the threshold."""
    return np.where(np.asarray(none) > threshold, 1.0 - np.asarray(answerable), scores)
