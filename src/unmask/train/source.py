"""What a run learns from: shards of text, or labelled examples. Either gives numbered batches, a tokenizer, and the model that it all begins with."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from unmask.data.examples import Example, Examples, read
from unmask.data.keys import hashed, key, uniform
from unmask.data.samples import Samples
from unmask.data.shards import Corpus
from unmask.data.stream import Numbered, Stream
from unmask.errors import UserError
from unmask.infer.evaluate import tallied
from unmask.infer.predictor import Predictor
from unmask.model import families, store
from unmask.model.card import Card
from unmask.model.embed import TextConfig
from unmask.model.store import Loaded
from unmask.objectives.base import Frame, Learner, Objective, Pieces, name_of, reading
from unmask.tasks import task
from unmask.tasks.metrics.kinds import LOWER
from unmask.tasks.tuning import Tuning
from unmask.tokenizer import Tokenizer
from unmask.train.run import Run, Shards, Table

MULTIPLE = 64  # tokens that a batch of examples is filled up to on a GPU, so that kernels meet few shapes


class Source(ABC):
    """`objective` is the run's, with what only the data knows; `loaded` the model as it is before the first step."""

    objective: tuple[Objective, ...]
    loaded: Loaded
    told: str = ""  # what the data was taken for, where that had to be found

    @abstractmethod
    def stream(self, longest: int, *, fixed: bool, static: bool) -> Numbered:
        """Batches of sequences of that length, to learn from or (`fixed`) to be judged by; `static`: filled up to one size."""

    @property
    @abstractmethod
    def judged(self) -> bool:
        """Whether there is something to evaluate on."""

    def measured(self, learner: Learner) -> dict[str, float]:
        """What the model does on that, beside its losses."""
        return {}

    def score(self, found: Mapping[str, float]) -> float:
        """Of an evaluation; the checkpoint with the least is the best one."""
        return sum(one.weights()[term] * found[f"valid.{term}"] for one in self.objective for term in one.judges())

    @abstractmethod
    def said(self) -> list[str]:
        """By what the data is known again."""

    def entropy(self) -> float:
        """Of single pieces, in nats: the loss of who knows only how frequent each is; where no pieces are asked, no loss is so high."""
        return math.inf


def source(run: Run) -> Source:
    return Documents(run, run.data) if isinstance(run.data, Shards) else Labelled(run, run.data)


class Documents(Source):
    def __init__(self, run: Run, data: Shards) -> None:
        self.run, self.data, self.objective = run, data, run.objective
        self.corpora = tuple(Corpus(place) for place in data.path)
        self.held = tuple(corpus for place in data.path if len(corpus := Corpus(place, "validation")))
        self.tokenizer = _tokenizer(self.corpora)
        self.pieces = Pieces.of(self.tokenizer)
        self.loaded = _loaded(run, self.tokenizer)

    def stream(self, longest: int, *, fixed: bool, static: bool) -> Stream:
        run, corpora = self.run, self.held if fixed else self.corpora
        read = reading(run.objective, Frame(self.pieces, longest, self.data.short, run.seed, fixed))
        weights = self.data.weights if len(corpora) == len(self.corpora) else ()
        return Stream(corpora, read, tokens=self.data.tokens, weights=weights, seed=run.seed, fixed=static)

    @cached_property
    def judged(self) -> bool:
        if not self.held or self.run.evaluate_tokens <= 0:
            return False
        try:
            next(self.stream(self.data.longest[-1][1], fixed=True, static=False).walk())
        except UserError as error:
            warnings.warn(f"nothing is evaluated, as of the validation documents {error}", stacklevel=2)
            return False
        return True

    def said(self) -> list[str]:
        return [corpus.index["text"] for corpus in self.corpora]

    def entropy(self) -> float:
        corpus = self.corpora[0]
        tokens = corpus.fetch(np.arange(min(len(corpus), 200))).tokens
        shares = np.bincount(tokens, minlength=1) / max(len(tokens), 1)
        return float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())


class Labelled(Source):
    """Examples of one task, all of them in memory as numbers."""

    def __init__(self, run: Run, data: Table) -> None:
        (tuning,) = run.objective
        if not isinstance(tuning, Tuning):
            raise UserError(f"{name_of(tuning)} learns from shards, and the run's data are examples; give a recipe of a task, such as classify")
        if not run.start:
            raise UserError("a task is learned on top of a model; say which with --model FOLDER")
        self.run, self.data, self.name = run, data, name_of(tuning)
        found = self._read(data.path, "train")
        tuning = tuning.fitted(found)
        self.objective = (tuning,)
        self.tuning: Tuning = tuning
        loaded = store.load(run.start, heads=tuning.heads(0), seed=run.seed)
        if loaded.tokenizer is None:
            raise UserError(f"{run.start} has no tokenizer, and examples of text need one; copy it beside the model")
        limit = loaded.card.length or loaded.model.config.longest or 512
        if data.length > limit:
            raise UserError(f"sequences of {data.length} tokens are longer than the {limit} that {run.start} takes; lower data.length")
        card = tuning.card(replace(loaded.card, length=data.length or min(limit, 512), pooling=(), normalise=False))
        self.loaded = replace(loaded, card=card)
        self.examples, self.held = _parted(found, self._read(data.validation, "dev", found) if data.validation else None, data.held)
        self.asked = task(self.name)(loaded.tokenizer, card)
        self.told = found.said

    def _read(self, path: Sequence[str], split: str, like: Examples | None = None) -> Examples:
        return read(path, self.name, split=split, layout=self.data.kind or None, columns=dict(self.data.columns), like=like)

    def stream(self, longest: int, *, fixed: bool, static: bool) -> Samples:
        words = self.loaded.model.config.embed
        samples = list(self.tuning.samples(self.asked, self.held if fixed else self.examples))
        segments = isinstance(words, TextConfig) and words.segments > 1
        return Samples(samples, self.data.size, seed=self.run.seed, fixed=fixed, multiple=MULTIPLE if static else 1, segments=segments)

    @property
    def judged(self) -> bool:
        return bool(self.held) and self.run.evaluate_tokens > 0

    def measured(self, learner: Learner) -> dict[str, float]:
        device = next(learner.model.parameters()).device
        learner.eval()
        tally = tallied(Predictor(replace(self.loaded, model=learner.model), device=str(device)), self.tuning, self.held, worst=0)
        learner.train()
        return {name: value for name, value in tally.values().items() if name != "loss"}

    def score(self, found: Mapping[str, float]) -> float:
        value = found[f"valid.{self.tuning.primary}"]
        return value if self.tuning.primary in LOWER else -value

    def said(self) -> list[str]:
        return list(self.data.path)


def _parted(found: Examples, held: Examples | None, share: float) -> tuple[list[Example], list[Example]]:
    """To learn from, and to be judged by: other files, or a share of the same, the same ones whatever the seed."""
    if held is not None:
        return list(found), list(held)
    examples = list(found)
    chosen = uniform(hashed(key(0, "held"), np.arange(len(examples), dtype=np.uint64))) < share
    return [one for one, out in zip(examples, chosen, strict=True) if not out], [one for one, out in zip(examples, chosen, strict=True) if out]


def _tokenizer(corpora: tuple[Corpus, ...]) -> Tokenizer:
    """The one that made all of the shards."""
    found = Tokenizer.load(corpora[0].tokenizer)
    for corpus in corpora:
        corpus.made_by(found, "the other shards'")
    return found


def _loaded(run: Run, tokenizer: Tokenizer) -> Loaded:
    needed: dict[str, int] = {}
    for objective in run.objective:
        needed |= objective.heads(tokenizer.size)
    if run.start:
        loaded = store.load(run.start, heads=needed, seed=run.seed)
        if loaded.tokenizer is not None and loaded.tokenizer.fingerprint != tokenizer.fingerprint:
            raise UserError(f"{run.start} reads by another tokenizer than the shards were made with; run unmask prepare with --tokenizer {run.start}")
        _room(run, loaded.model.config.longest, "")
        return loaded
    embed = run.model.embed
    if not isinstance(embed, TextConfig):
        raise UserError(f"a {run.model.family} reads pictures, and shards hold text; choose a family of text, such as bert")
    for head in set(needed) - set(families.family(run.model.family).heads):
        having = ", ".join(kind for kind in families.names() if head in families.family(kind).heads)
        raise UserError(f"a {run.model.family} has no head {head!r}, which the objective asks for; choose a shape of one that has it: {having}")
    _room(run, run.model.longest, " or raise model.embed.positions")
    words = replace(embed, vocabulary=tokenizer.size, padding=tokenizer.special("pad"))
    shape = replace(run.model, embed=words, heads=tuple(needed.items()), pooler=False)  # a head that reads pooled brings its pooler
    card = Card(length=shape.longest)
    ends = {"cls": tokenizer.special("cls"), "sep": tokenizer.special("sep")}
    named = {f"{role}_token_id": ends[end] for role, end in (("cls", "cls"), ("bos", "cls"), ("sep", "sep"), ("eos", "sep"))}  # else a library fills in its own
    return Loaded(families.new(shape, run.seed), card, tokenizer, named, {})


def _room(run: Run, positions: int | None, otherwise: str) -> None:
    longest = max(value for _, value in run.data.longest)
    if positions is not None and longest > positions:
        raise UserError(f"sequences of {longest} tokens are longer than the {positions} positions of the model; lower data.longest{otherwise}")
