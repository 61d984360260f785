"""A run made ready: data opened, the model built or loaded and put where and how it computes. From outside, in a fixed order:
weights, device, shares, precision, compile; the model itself knows none of it."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recomputed

from unmask import __version__
from unmask.config import Duration, read_json
from unmask.data.batch import Batch
from unmask.data.stream import Numbered
from unmask.errors import UserError
from unmask.model import families
from unmask.model.embed import TextEmbed
from unmask.model.encoder import EncoderConfig, Layer
from unmask.model.layout import Packed
from unmask.model.store import Loaded
from unmask.objectives.base import Learner, counts
from unmask.train import precision
from unmask.train.distribute import Gradients, Group
from unmask.train.feed import Begin, Feed, padded
from unmask.train.flops import of_token
from unmask.train.optim import Optimizers
from unmask.train.precision import Precision
from unmask.train.run import Run, Shards, from_json
from unmask.train.schedule import staged
from unmask.train.shares import Shares, shared
from unmask.train.source import source


class Prepared:
    """Everything that a loop touches."""

    def __init__(self, run: Run, out: Path, group: Group) -> None:
        self.run, self.group = run, group
        self.source = source(run)
        self.loaded, self.objective = self.source.loaded, self.source.objective
        self.learner = Learner(self.loaded.model, self.objective, run.seed)
        for objective in self.objective:
            if objective.reach is not None:
                _see(self.loaded, objective.reach)
        self.weights = self.learner.weights
        self.terms = tuple(self.weights)
        self.kind = precision.chosen(run.precision, group.device)
        self.sharded = run.shard and dist.is_available() and dist.is_initialized()
        if self.sharded:  # from the CPU, a layer at a time: the whole need not fit on a device
            self.shares = shared(self.learner, group, self.kind)
        else:
            self.shares = Shares({name: p.shape for name, p in self.learner.to(group.device).named_parameters()})
        self.precision = Precision(self.learner, self.kind, sharded=self.sharded)
        self.gradients = Gradients(Group() if self.sharded else group, self.precision)  # FSDP2 adds up by itself
        encoder = self.loaded.model.config.encoder
        gated = isinstance(encoder, EncoderConfig) and encoder.gated
        self.optimizers = Optimizers(self.precision.masters, run.optimizer, encoder.depth, gated, self.shares)
        self.mean = {name: p.detach().clone() for name, p in self.precision.masters.items()} if run.ema else {}
        self.streams: dict[tuple[int, bool], Numbered] = {}  # by how long sequences are, and whether for evaluation
        if run.recompute:
            _recomputing(self.learner)
        if run.compile == "yes" or (run.compile == "auto" and self.static and isinstance(run.data, Shards)):  # steps of examples are of many sizes
            self._compile()

    # ---- data

    @cached_property
    def blocks(self) -> int:
        return self.stream(0.0).blocks

    def stream(self, share: float, *, fixed: bool = False) -> Numbered:
        longest = staged(self.run.data.longest, share)
        if (longest, fixed) not in self.streams:
            self.streams[longest, fixed] = self.source.stream(longest, fixed=fixed, static=self.static)
        return self.streams[longest, fixed]

    @property
    def static(self) -> bool:
        """Whether batches are filled up to one size, as compiled kernels want them."""
        return self.group.device.type == "cuda" and self.run.layout == "packed"

    def feed(self, stop: Duration, begin: Begin, known: Mapping[int, float]) -> Feed:
        group, run = self.group, self.run
        return Feed(
            self.stream,
            run.data.step,
            stop,
            begin,
            rank=group.rank,
            ranks=group.ranks,
            together=run.together,
            finish=self.finish,
            known=known,
            even=self.sharded,
        )

    def finish(self, batch: Batch) -> Batch:
        """As the kernels want it, and where: rows of one length, or packed with one bound for the longest, so that compiled shapes stay."""
        assert isinstance(batch.layout, Packed)
        longest = max(value for _, value in self.run.data.longest)
        if self.run.layout == "padded":  # as wide as this stage of the run needs: at 512, sequences of 128 would be computed four times over
            return padded(batch, min(value for _, value in self.run.data.longest if value >= batch.layout.longest)).to(self.group.device)
        if self.static:
            batch = replace(batch, layout=replace(batch.layout, longest=longest)).to(self.group.device)
            assert isinstance(batch.layout, Packed)
            torch._dynamo.maybe_mark_dynamic(batch.layout.bounds, 0)  # how many sequences there are is no shape of a kernel
        return batch

    @cached_property
    def validation(self) -> bool:
        """Whether there is something to evaluate on."""
        return self.source.judged

    # ---- how it computes

    def _compile(self) -> None:
        for part in self.learner.modules():
            if isinstance(part, Layer | TextEmbed):
                part.compile(dynamic=False)
        self.learner.words = torch.compile(self.learner.words)  # how many words are asked may move with the run

    @torch.no_grad()
    def averaged(self) -> None:
        """The running mean of the weights takes in the step that was made."""
        if self.mean:
            torch._foreach_lerp_(list(self.mean.values()), [p.detach() for p in self.precision.masters.values()], 1 - self.run.ema)

    @property
    def dropout(self) -> bool:
        return any(isinstance(part, nn.Dropout) and part.p > 0 for part in self.learner.modules()) or self._attention_dropout

    @property
    def _attention_dropout(self) -> bool:
        encoder = self.loaded.model.config.encoder
        return isinstance(encoder, EncoderConfig) and encoder.attention_dropout > 0

    # ---- what is said of it

    @cached_property
    def ends(self) -> list[Tensor]:
        """Which parameters are of the model's first layer, and which of its last: what the one has of the other's gradient goes through all of them."""
        names, layers = list(self.precision.masters), self.loaded.model.config.encoder.layers
        places = [[place for place, name in enumerate(names) if name.startswith(f"model.encoder.layers.{layer}.")] for layer in (0, layers - 1)]
        return [torch.tensor(one, dtype=torch.long, device=self.group.device) for one in places]

    @cached_property
    def flops(self) -> float:
        """Of a token, forward and backward, on average over the run, as the first batch of each stage of its lengths has it."""
        begins = [begin for begin, _ in self.run.data.longest]
        found = 0.0
        for begin, end in itertools.pairwise([*begins, 1.0]):
            _, block, number = next(self.stream(begin).walk())
            labels = counts(block.make(number, (begin + end) / 2))
            each = {term: count / block.tokens(number) for term, count in labels.items()}
            found += (end - begin) * of_token(self.learner, block.lengths, each)
        return found

    @cached_property
    def limit(self) -> float:
        """What a plain matrix product reaches here, in operations a second, for all ranks."""
        dtype = torch.float32 if self.kind == "float64" else precision.DTYPES[self.kind]
        side = 8192 if self.group.device.type == "cuda" else 512
        one = torch.randn(side, side, device=self.group.device).to(dtype)
        from time import perf_counter

        best = math.inf
        for _ in range(4):
            start = perf_counter()
            other = one @ one
            other[0, 0].item()
            best = min(best, perf_counter() - start)
        return 2 * side**3 / best * self.group.ranks

    def folder(self, metrics: Mapping[str, float], weights: Mapping[str, Tensor] | None = None) -> Loaded:
        """The model as it is now, on the CPU in float32, ready to be saved. Where a rank has only its rows, it is told the whole weights."""
        chosen = weights or self.mean or self.precision.masters
        with torch.device("meta"):
            model = families.build(self.loaded.model.config)
        model.to_empty(device="cpu")
        model.tie()
        ours = {name.removeprefix("model."): p for name, p in chosen.items() if name.startswith("model.")}
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(ours[name])
        made = {"recipe": self.run.json(), "metrics": dict(metrics), "seed": self.run.seed, "device": str(self.group.device.type)}
        made |= {"data": self.source.said(), "numpy": np.__version__, "torch": torch.__version__, "unmask": __version__}
        return replace(self.loaded, model=model.eval(), provenance=made)


def prepared(run: Run, out: Path, group: Group) -> Prepared:
    """The run, checked against what is in the folder already."""
    if group.ranks > min(count for _, count in run.data.step):
        least = min(count for _, count in run.data.step)
        raise UserError(f"{group.ranks} ranks share out steps of {least} micro-batches, and one would have none; raise data.step or start fewer")
    if group.first:
        _check(run, out)
    group.wait()
    ready = Prepared(run, out, group)  # before anything is written: a mistake leaves no folder
    if group.first:
        _begin(run, out)
    group.wait()
    return ready


def _check(run: Run, out: Path) -> None:
    """Another run's folder is not written over, once that run has made a step."""
    path, beside = out / "recipe.json", out / ".recipe.json.new"
    log = out / "metrics.jsonl"
    if path.is_file() and (any(out.glob("checkpoints/step-*")) or (log.is_file() and log.stat().st_size)):
        other = _differences(from_json(read_json(path), path).json(), run.json())
        if other:
            remedy = f"give --out another folder, or resume it with unmask train {out}"
            raise UserError(f"{out} is the folder of another run ({', '.join(other[:3])} differ); {remedy}")
    elif not path.is_file() and out.exists() and any(one.name != beside.name for one in out.iterdir()):  # that alone: killed, or a full disk
        raise UserError(f"{out} is there and is no folder of a run; give --out another folder")


def _begin(run: Run, out: Path) -> None:
    path, beside = out / "recipe.json", out / ".recipe.json.new"
    try:
        out.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(run.json(), indent=1) + "\n", encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        raise UserError(f"{out} could not be written ({error.strerror or error}); free some space or choose another place") from None


FREE = {"together", "recompute", "shard", "track", "keep", "save", "compile", "precision"}  # what may change when a run is resumed


def _differences(one: Mapping[str, Any], other: Mapping[str, Any], path: str = "") -> list[str]:
    found = []
    for name in one.keys() | other.keys():
        if path or name not in FREE:
            a, b = one.get(name), other.get(name)
            if isinstance(a, dict) and isinstance(b, dict):
                found += _differences(a, b, f"{path}{name}.")
            elif json.loads(json.dumps(a)) != json.loads(json.dumps(b)):
                found.append(f"{path}{name}")
    return sorted(found)


def _recomputing(learner: nn.Module) -> None:
    """From outside: a layer knows nothing of it."""
    for part in learner.modules():
        if isinstance(part, Layer):
            part.forward = partial(recomputed, part.forward, use_reentrant=False)  # type: ignore[method-assign]


def _see(loaded: Loaded, reach: tuple[int, int]) -> None:
    """How far every layer sees, if the folder can say so: else it would be read as another model."""
    config, kind = loaded.model.config, families.family(loaded.model.config.family)
    encoder = config.encoder
    try:
        assert isinstance(encoder, EncoderConfig)  # no other has a reach, nor the head that such an objective asks for
        encoder = replace(encoder, reach=(reach,))
        told = kind.read(kind.write(replace(config, encoder=encoder))).encoder == encoder
    except UserError:
        told = False
    if not told:
        raise UserError(f"the folder of a {config.family} cannot say that it reads one way; choose a shape of bert")
    loaded.model.config = replace(config, encoder=encoder)
    loaded.model.encoder.config = encoder
