"""A run: everything that decides what is learned, in one frozen value that a function returns and a file holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from unmask.config import Duration, fitted, overridden, plain
from unmask.errors import UserError
from unmask.model import families
from unmask.model.model import ModelConfig
from unmask.objectives import base as objectives
from unmask.objectives.base import Objective
from unmask.tasks import tuning
from unmask.train.optim import Optimizer
from unmask.train.schedule import Schedule


@dataclass(frozen=True)
class Shards:
    """What `unmask prepare` wrote. A step is made of micro-batches of `tokens`; how many stand in `step`, by the share of the run they begin at."""

    path: tuple[str, ...] = ("shards",)
    weights: tuple[float, ...] = ()  # of several folders, how often each is read; none: by their sizes
    tokens: int = 16_384
    step: tuple[tuple[float, int], ...] = ((0.0, 1),)
    longest: tuple[tuple[float, int], ...] = ((0.0, 512),)
    short: float = 0.1  # the share of sequences that aim at a shorter length

    counted: ClassVar[str] = "tokens"  # the field that says how much a micro-batch holds, and of what
    units: ClassVar[str] = "tokens"

    @property
    def amount(self) -> int:
        return self.tokens

    @property
    def least(self) -> int:
        return max(value for _, value in self.longest)

    def of(self, amount: int) -> Shards:
        """The same in micro-batches of another size."""
        return replace(self, tokens=amount)

    def __post_init__(self) -> None:
        if not self.path:
            raise UserError("data.path names no folder; give one or more that unmask prepare wrote")
        for name, stages in (("step", self.step), ("longest", self.longest)):
            if not stages or stages[0][0] != 0 or any(value < 1 for _, value in stages) or sorted(stages) != list(stages):
                raise UserError(f"data.{name} is {stages}; it is a list of (share of the run, value) from share 0 on, such as [[0, 128], [0.9, 512]]")
        if (longest := max(value for _, value in self.longest)) > self.tokens:
            raise UserError(f"sequences of {longest} tokens do not fit into micro-batches of {self.tokens}; raise data.tokens")


@dataclass(frozen=True)
class Table:
    """Labelled examples of a task: files, or a folder that holds a split each. A step is made of micro-batches of `size` of them."""

    path: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()  # none: `held` of the examples, the same ones every time
    held: float = 0.1
    columns: Mapping[str, str] = field(default_factory=dict)  # of a role (text, second, label ...) the column's name, where it is not found
    kind: str = ""  # how the files are laid out, where that is not found
    size: int = 32
    step: tuple[tuple[float, int], ...] = ((0.0, 1),)
    length: int = 0  # pieces of a sequence at most; 0: what the model takes, 512 at most

    counted: ClassVar[str] = "size"
    units: ClassVar[str] = "examples"
    least: ClassVar[int] = 1

    @property
    def amount(self) -> int:
        return self.size

    def of(self, amount: int) -> Table:
        return replace(self, size=amount)

    def __post_init__(self) -> None:
        if self.size < 1 or self.length < 0 or not 0 <= self.held < 1:
            raise UserError(f"data of size {self.size}, length {self.length} and held {self.held} cannot be; give 1 or more, 0 or more, and 0 to below 1")

    @property
    def longest(self) -> tuple[tuple[float, int], ...]:
        return ((0.0, self.length or 512),)


@dataclass(frozen=True)
class Run:
    """`model` is a shape to start from nothing; with `start`, the weights are those of that folder."""

    model: ModelConfig
    objective: tuple[Objective, ...]
    data: Shards | Table = field(default_factory=Shards)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    start: str = ""
    stop: str = "10000"
    evaluate: str = "5%"
    evaluate_tokens: int = 1_000_000  # of the validation documents, so many at most
    save: str = "10min"
    keep: int = 2  # checkpoints, the best one aside
    patience: int = 0  # evaluations without a better one before it stops; 0: never
    ema: float = 0.0  # the decay of a running mean of the weights, which is then the model; 0: none
    seed: int = 0
    precision: Literal["auto", "float32", "bf16", "fp16", "float64"] = "auto"
    compile: Literal["auto", "yes", "no"] = "auto"  # auto: on a GPU
    layout: Literal["packed", "padded"] = "packed"
    recompute: bool = False  # forget what layers computed and compute it again going back: less memory, a third more work
    shard: bool = False  # each rank keeps its share of the weights, gradients and optimizer's memory (FSDP2)
    together: int = 1  # micro-batches that go through the model at once; it changes memory and speed alone
    track: Literal["", "tensorboard", "wandb"] = ""

    def __post_init__(self) -> None:
        for name in ("stop", "evaluate", "save"):
            Duration.of(getattr(self, name))
        if Duration.of(self.stop).unit == "share":
            raise UserError(f"a run cannot stop after {self.stop} of itself; say 20000 (steps), 1e9tok, 3ep or 10min")
        if Duration.of(self.schedule.warmup).unit == "seconds" and Duration.of(self.stop).unit != "seconds":  # its steps would not know the time
            raise UserError(f"a warm-up of {self.schedule.warmup} needs a run that stops by time, and this one stops after {self.stop}; give it in steps or %")
        if not self.objective:
            raise UserError(f"a run needs something to learn; its objective is one or more of {', '.join(objectives.names())}")
        if len(set(map(objectives.name_of, self.objective))) < len(self.objective):
            raise UserError(f"a run learns by each objective once; its objective is {','.join(map(objectives.name_of, self.objective))}")
        terms = [term for one in self.objective for term in one.terms]
        if len(set(terms)) < len(terms):
            said = ",".join(map(objectives.name_of, self.objective))
            raise UserError(f"{said} cannot be learned in one run: two of them ask for {max(terms, key=terms.count)}; choose one")
        if self.together < 1 or self.keep < 1 or not 0 <= self.ema < 1:
            raise UserError(f"together {self.together}, keep {self.keep} and ema {self.ema} cannot be; give 1 or more, 1 or more, and 0 to below 1")

    def json(self) -> dict[str, Any]:
        found = plain(self)
        found["objective"] = {objectives.name_of(one): plain(one) for one in self.objective}
        return found

    def set(self, name: str, word: str) -> Run:
        """The same with one field changed as typed: `optimizer.lr 2e-4`, `mlm.rate 0.3`, `objective mlm,nsp`."""
        first, _, rest = name.partition(".")
        if name == "objective":
            known = {objectives.name_of(one): one for one in self.objective}
            return replace(self, objective=tuple(known.get(one) or learned(one)() for one in word.split(",")))
        if rest and first in (*objectives.names(), *tuning.names()):
            if first not in map(objectives.name_of, self.objective):
                mine = ", ".join(map(objectives.name_of, self.objective))
                raise UserError(f"this run does not learn by {first}, so there is no {name}; it learns by {mine}")
            found = tuple(overridden(one, rest, word, f"{first}.") if objectives.name_of(one) == first else one for one in self.objective)
            return replace(self, objective=found)
        if name == "model":
            return replace(self, model=families.shape(word))
        return overridden(self, name, word)


def changed(run: Run, changes: Sequence[tuple[str, str]]) -> Run:
    """The run with all of these set, each as it was said last. One that only makes sense beside another waits for it: shorter ones, then smaller batches."""
    left = list(dict(changes).items())
    while left:
        waiting, first = [], None
        for name, word in left:
            try:
                run = run.set(name, word)
            except UserError as error:
                waiting.append((name, word))
                first = first or error
        if first is not None and len(waiting) == len(left):
            raise first
        left = waiting
    return run


def from_json(found: Mapping[str, Any], path: Path) -> Run:
    """The run that a file says, strictly."""
    rest = dict(found)
    try:
        kind = families.family(rest["model"]["family"])
        named = dict(rest.pop("objective"))
        found_by = tuple(fitted(learned(name)(), path, settings) for name, settings in named.items())
        data = Table() if "held" in rest["data"] else Shards()
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{path} is no recipe ({type(error).__name__}: {error}); give the folder of a run") from None
    return fitted(Run(next(iter(kind.shapes.values())), found_by, data), path, rest)


def learned(name: str) -> type[Objective]:
    """An objective of pretraining, or a task."""
    return tuning.find(name) if name in tuning.names() else objectives.find(name)
