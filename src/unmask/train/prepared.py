"""A run made ready: data opened, the model built or loaded and put where and how it computes. From outside, in a fixed order:
weights, device, precision, compile; the model itself knows none of it."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as recomputed

from unmask import __version__
from unmask.config import Duration, read_json
from unmask.data.batch import Batch
from unmask.data.shards import Corpus
from unmask.data.stream import Stream
from unmask.errors import UserError
from unmask.model import families, store
from unmask.model.card import Card
from unmask.model.embed import TextConfig
from unmask.model.encoder import EncoderConfig
from unmask.model.layout import Packed
from unmask.model.store import Loaded
from unmask.objectives.base import Frame, Learner, Pieces, reading
from unmask.tokenizer import Tokenizer
from unmask.train import precision
from unmask.train.distribute import Group
from unmask.train.feed import Begin, Feed, padded
from unmask.train.optim import Optimizers
from unmask.train.precision import Precision
from unmask.train.run import Run, from_json
from unmask.train.schedule import staged


class Prepared:
    """Everything that a loop touches."""

    def __init__(self, run: Run, out: Path, group: Group) -> None:
        self.run, self.group = run, group
        self.corpora = tuple(Corpus(place) for place in run.data.path)
        self.held = tuple(corpus for place in run.data.path if len(corpus := Corpus(place, "validation")))
        self.tokenizer = _tokenizer(self.corpora)
        self.pieces = Pieces.of(self.tokenizer)
        self.loaded = _loaded(run, self.tokenizer)
        self.learner = Learner(self.loaded.model, run.objective, run.seed)
        for objective in run.objective:
            if objective.reach is not None:
                _see(self.loaded, objective.reach)
        self.weights = self.learner.weights
        self.terms = tuple(self.weights)
        self.learner.to(group.device)
        self.kind = precision.chosen(run.precision, group.device)
        self.precision = Precision(self.learner, self.kind)
        encoder = self.loaded.model.config.encoder
        gated = isinstance(encoder, EncoderConfig) and encoder.gated
        self.optimizers = Optimizers(self.precision.masters, run.optimizer, encoder.depth, gated)
        self.mean = {name: p.detach().clone() for name, p in self.precision.masters.items()} if run.ema else {}
        self.streams: dict[tuple[int, bool], Stream] = {}  # by how long sequences are, and whether for evaluation
        if run.recompute:
            _recomputing(self.learner)
        if run.compile == "yes" or (run.compile == "auto" and group.device.type == "cuda"):
            self._compile()

    # ---- data

    @cached_property
    def blocks(self) -> int:
        return self.stream(0.0).blocks

    def stream(self, share: float, *, fixed: bool = False) -> Stream:
        chosen = staged(self.run.data.longest, share), fixed
        if chosen not in self.streams:
            self.streams[chosen] = self._stream(*chosen)
        return self.streams[chosen]

    def _stream(self, longest: int, fixed: bool) -> Stream:
        run, corpora = self.run, self.held if fixed else self.corpora
        read = reading(run.objective, Frame(self.pieces, longest, run.data.short, run.seed, fixed))
        weights = run.data.weights if len(corpora) == len(self.corpora) else ()
        static = self.group.device.type == "cuda" and run.layout == "packed"
        return Stream(corpora, read, tokens=run.data.tokens, weights=weights, seed=run.seed, fixed=static)

    def feed(self, stop: Duration, begin: Begin, known: Mapping[int, float]) -> Feed:
        group, run = self.group, self.run
        return Feed(
            self.stream,
            run.data.step,
            stop,
            begin,
            rank=group.rank,
            ranks=group.ranks,
            device=group.device,
            together=run.together,
            finish=self.finish,
            known=known,
        )

    def finish(self, batch: Batch) -> Batch:
        """As the kernels want it: rows of one length, or packed with one bound for the longest, so that compiled shapes stay."""
        longest = max(value for _, value in self.run.data.longest)
        if self.run.layout == "padded":
            return padded(batch, longest)
        assert isinstance(batch.layout, Packed)
        return replace(batch, layout=replace(batch.layout, longest=longest)) if self.group.device.type == "cuda" else batch

    @cached_property
    def validation(self) -> bool:
        """Whether there is something to evaluate on."""
        if not self.held or self.run.evaluate_tokens <= 0:
            return False
        try:
            next(self.stream(1.0, fixed=True).walk())
        except UserError as error:
            if self.group.first:
                warnings.warn(f"nothing is evaluated, as of the validation documents {error}", stacklevel=2)
            return False
        return True

    # ---- how it computes

    def _compile(self) -> None:
        for part in self.learner.modules():
            if type(part).__name__ in ("Layer", "TextEmbed"):
                part.compile(dynamic=False)
        self.learner.words = torch.compile(self.learner.words, dynamic=False)

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
    def flops(self) -> float:
        """Of a token, forward and backward: six for each weight that multiplies it, and attention over half of the longest sequence."""
        encoder: Any = self.loaded.model.config.encoder
        inner = sum(p.numel() for name, p in self.learner.model.encoder.named_parameters() if p.ndim == 2) * encoder.depth / encoder.layers
        words = self.loaded.model.config.embed
        head = 0.15 * 6 * encoder.width * (words.vocabulary + encoder.width) if isinstance(words, TextConfig) and "words" in self.terms else 0.0
        return float(6 * inner + 12 * encoder.depth * encoder.width * max(value for _, value in self.run.data.longest) / 2 + head)

    @cached_property
    def limit(self) -> float:
        """What a plain matrix product reaches here, in operations a second, for all ranks."""
        dtype = torch.bfloat16 if self.kind == "bf16" else torch.float32
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

    @cached_property
    def entropy(self) -> float:
        """Of single pieces, in nats: the loss of who knows only how frequent each is."""
        corpus = self.corpora[0]
        tokens = corpus.fetch(np.arange(min(len(corpus), 200))).tokens
        shares = np.bincount(tokens, minlength=1) / max(len(tokens), 1)
        return float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())

    def folder(self, metrics: Mapping[str, float]) -> Loaded:
        """The model as it is now, on the CPU in float32, ready to be saved."""
        chosen = self.mean or {name: p.detach() for name, p in self.precision.masters.items()}
        with torch.device("meta"):
            model = families.build(self.loaded.model.config)
        model.to_empty(device="cpu")
        model.tie()
        ours = {name.removeprefix("model."): p for name, p in chosen.items() if name.startswith("model.")}
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(ours[name])
        made = {"recipe": self.run.json(), "metrics": dict(metrics), "seed": self.run.seed, "device": str(self.group.device.type)}
        made |= {"data": [corpus.index["text"] for corpus in self.corpora], "numpy": np.__version__, "torch": torch.__version__, "unmask": __version__}
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


FREE = {"together", "recompute", "track", "keep", "save", "compile", "precision"}  # what may change when a run is resumed


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


def _recomputing(learner: nn.Module) -> None:
    """From outside: a layer knows nothing of it."""
    for part in learner.modules():
        if type(part).__name__ == "Layer":
            part.forward = partial(recomputed, part.forward, use_reentrant=False)


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
