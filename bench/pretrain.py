"""Pretraining, tokens a second: our loop against transformers' BertForPreTraining, on the same sequences of the same shards.

    python bench/pretrain.py --shards shards                          # on a CPU: 4 layers, width 256, length 128
    python bench/pretrain.py --shards shards --shape bert.base --length 512 --tokens 65536 --device cuda
    python bench/pretrain.py --shape bert.base --length 128 --full    # full rows of random pieces, no shards needed

Both learn masked words and next sentence with the same dropout; contenders take turns in one process, a figure is the median. Ours includes
making the batches. The peer is given its batches ready on the device, padded, in its best size; on a GPU it is compiled, in bf16 by
autocast, with fused AdamW, and its attention is SDPA. Only real tokens count.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForPreTraining

from unmask.data.batch import Batch
from unmask.model import families
from unmask.model.layout import Packed
from unmask.objectives.base import counts
from unmask.objectives.mlm import MLM
from unmask.objectives.nsp import NSP
from unmask.train import loop
from unmask.train.distribute import Group
from unmask.train.feed import Begin, Step, padded
from unmask.train.optim import Optimizer
from unmask.train.prepared import Prepared
from unmask.train.run import Run, Shards

Turn = Callable[[float], float]  # seconds to work for -> tokens a second


def ours(run: Run, device: torch.device, full: Batch | None) -> tuple[Turn, Prepared]:
    ready = Prepared(run, Path("."), Group(device=device))
    if full is None:
        steps: Iterator[Step] = iter(ready.feed(loop.Duration.of("1000000"), Begin(), {}))
    else:
        batch = ready.finish(full)
        steps = itertools.repeat(Step(0, Begin().clock, [(0, batch)], counts(full), len(full.inputs["tokens"]), Begin().place, 0.0))

    def turn(seconds: float) -> float:
        return _timed(seconds, device, lambda: _stepped(ready, next(steps)))

    return turn, ready


def _stepped(ready: Prepared, step: Step) -> int:
    loop._step(ready, step)
    return step.tokens


def peer(run: Run, batches: list[Batch], device: torch.device, length: int, rows: int) -> Turn:
    """Rows of one length, `rows` at a time."""
    encoder: Any = run.model.encoder
    words: Any = run.model.embed
    config = BertConfig(
        vocab_size=words.vocabulary,
        hidden_size=encoder.width,
        num_hidden_layers=encoder.depth,
        num_attention_heads=encoder.heads,
        intermediate_size=encoder.hidden,
        max_position_embeddings=words.positions,
        hidden_dropout_prob=encoder.dropout,
        attention_probs_dropout_prob=encoder.attention_dropout,
    )
    model = BertForPreTraining(config).to(device).train()
    cuda = device.type == "cuda"
    called = torch.compile(model) if cuda else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ready = list(_rows(batches, length, rows, device))
    turns = itertools.cycle(ready)

    def step() -> int:
        given, tokens = next(turns)
        with torch.autocast("cuda", torch.bfloat16, enabled=cuda):
            called(**given).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return tokens

    return lambda seconds: _timed(seconds, device, step)


def _rows(batches: list[Batch], length: int, rows: int, device: torch.device) -> Iterator[tuple[dict[str, torch.Tensor], int]]:
    kept: dict[str, list[torch.Tensor]] = {name: [] for name in ("input_ids", "token_type_ids", "attention_mask", "labels", "next_sentence_label")}
    for batch in batches:
        labels = torch.full((len(batch.inputs["tokens"]),), -100)
        real = batch.targets["words.labels"] != -100
        labels[batch.targets["words.rows"][real]] = batch.targets["words.labels"][real]
        one = padded(replace(batch, inputs={**batch.inputs, "labels": labels, "attention_mask": torch.ones_like(labels)}), length)
        mask = one.inputs["attention_mask"]
        kept["input_ids"] += one.inputs["tokens"]
        kept["token_type_ids"] += one.inputs.get("segments", torch.zeros_like(mask))
        kept["attention_mask"] += mask
        kept["labels"] += one.inputs["labels"].masked_fill(mask == 0, -100)
        kept["next_sentence_label"] += batch.targets["next.labels"] if "next.labels" in batch.targets else torch.zeros(len(mask), dtype=torch.long)
    count = len(kept["labels"])
    for start in range(0, max(1, count - rows + 1), rows):
        given = {name: torch.stack(values[start : start + rows]).to(device) for name, values in kept.items()}
        yield given, int(given["attention_mask"].sum())


def _timed(seconds: float, device: torch.device, step: Callable[[], int]) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start, tokens = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        for _ in range(4 if device.type == "cuda" else 1):
            tokens += step()
        if device.type == "cuda":
            torch.cuda.synchronize()
    return tokens / (time.perf_counter() - start)


def rows_of(tokens: int, length: int, vocabulary: int) -> Batch:
    """Full rows of random pieces, 15% of them asked."""
    draw = torch.Generator().manual_seed(0)
    count = tokens // length
    ids = torch.randint(5, vocabulary, (count * length,), generator=draw)
    rows = torch.randperm(count * length, generator=draw)[: int(0.15 * count * length)].sort().values
    positions = torch.arange(length).repeat(count)
    inputs = {"tokens": ids, "positions": positions, "segments": (positions >= length // 2).long()}
    targets = {"words.rows": rows, "words.labels": ids[rows], "next.labels": torch.randint(0, 2, (count,), generator=draw)}
    return Batch(inputs, Packed.of([length] * count), targets)


def profile(turn: Turn) -> None:
    """Where a GPU's time goes, by kind of kernel."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watched

    with watched(activities=[ProfilerActivity.CUDA]) as found:
        turn(0.5)
    kinds = {
        "matrix products": ("gemm", "nvjet", "cutlass", "cublas"),
        "attention": ("flash", "fmha", "attn"),
        "optimizer": ("multi_tensor", "foreach", "adam"),
    }
    sums: dict[str, float] = {}
    for event in found.key_averages():
        name = event.key.lower()
        kind = next(
            (kind for kind, parts in kinds.items() if any(part in name for part in parts)), "memory copies" if "memcpy" in name else "elementwise and norms"
        )
        sums[kind] = sums.get(kind, 0.0) + event.self_device_time_total
    total = sum(sums.values()) or 1.0
    print("time on the GPU: " + ", ".join(f"{kind} {value / total:.1%}" for kind, value in sorted(sums.items(), key=lambda one: -one[1])))
    for event in sorted(found.key_averages(), key=lambda one: -one.self_device_time_total)[:14]:
        print(f"  {event.self_device_time_total / total:6.1%} {event.count:6d} {event.key[:110]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path)
    parser.add_argument("--shape", default="bert.mini")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=4096, help="of a step of ours")
    parser.add_argument("--rows", type=int, nargs="*", default=[], help="the peer's sizes of a batch, to choose the best of")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--full", action="store_true", help="full rows of random pieces")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--compile", default="auto")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--alone", action="store_true", help="without the peer")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    device = torch.device(asked.device)
    with tempfile.TemporaryDirectory() as place:
        shards = asked.shards or made(Path(place))
        shape = families.shape(asked.shape).without_dropout()
        if asked.dropout:
            encoder: Any = shape.encoder
            shape = replace(
                shape, embed=replace(shape.embed, dropout=asked.dropout), encoder=replace(encoder, dropout=asked.dropout, attention_dropout=asked.dropout)
            )
        data = Shards(path=(str(shards),), tokens=asked.tokens, longest=((0.0, asked.length),))
        layout = "padded" if asked.dropout else "packed"
        run = Run(shape, (MLM(), NSP()), data, Optimizer(lr=1e-4), precision=asked.precision, compile=asked.compile, layout=layout)
        full = None
        if asked.full:
            vocabulary: Any = shape.embed
            full = rows_of(asked.tokens, asked.length, vocabulary.vocabulary)
        turn, ready = ours(run, device, full)
        contenders: dict[str, Turn] = {"unmask": turn}
        warm = time.perf_counter()
        turn(1.0)
        print(f"unmask ready after {time.perf_counter() - warm:.0f} s, {ready.kind}", flush=True)
        if asked.profile:
            turn(2.0)
            profile(turn)
        if not asked.alone:
            stream = ready.stream(0.0)
            batches = [full] if full else [batch for _, (_, batch) in zip(range(max(4, 4 * 65_536 // asked.tokens)), stream.batches(), strict=False)]
            words: Any = ready.loaded.model.config.embed
            given = replace(run, model=replace(shape, embed=words))
            for rows in asked.rows or [max(1, asked.tokens // asked.length)]:
                contenders[f"transformers, {rows} rows"] = peer(given, [_plain(batch) for batch in batches], device, asked.length, rows)
        runs: dict[str, list[float]] = {name: [] for name in contenders}
        for name, one in contenders.items():
            warm = time.perf_counter()
            one(asked.seconds / 2)
            print(f"{name} compiled and warm after {time.perf_counter() - warm:.0f} s", flush=True)
        for _, (name, one) in itertools.product(range(asked.rounds), contenders.items()):
            runs[name].append(one(asked.seconds))
            print(f"{name}: {runs[name][-1]:,.0f} tokens/s", flush=True)
    figures = {name: {"tokens_per_second": statistics.median(found), "spread": [min(found), max(found)]} for name, found in runs.items()}
    best = max([one["tokens_per_second"] for name, one in figures.items() if name != "unmask"] or [float("nan")])  # type: ignore[type-var]
    for name, one in figures.items():
        speed, (low, high) = one["tokens_per_second"], one["spread"]
        print(f"{name:28s}{speed:12,.0f} tokens/s ({low:,.0f} to {high:,.0f}), {speed / best:6.2f} x")
    reached = figures["unmask"]["tokens_per_second"] * ready.flops / 1e12
    print(f"{reached:.1f} trillion operations a second, of {ready.limit / 1e12:.1f} that a plain matrix product reaches here")
    if asked.out:
        asked.out.write_text(json.dumps({"arguments": {key: str(value) for key, value in vars(asked).items()}, "figures": figures}, indent=2) + "\n")


def _plain(batch: Batch) -> Batch:
    """Without what fills a batch up to a fixed size."""
    if batch.ids is None or len(batch.ids) == len(batch.layout.lengths):
        return batch
    count = len(batch.ids)
    lengths = batch.layout.lengths[:count].tolist()
    inputs = {name: one[: sum(lengths)] for name, one in batch.inputs.items()}
    return replace(batch, inputs=inputs, layout=Packed.of(lengths), targets={**batch.targets, "next.labels": batch.targets["next.labels"][:count]})


def made(place: Path) -> Path:
    import pydoc_data.topics

    from unmask.data.corpus import sources
    from unmask.data.prepare import prepare
    from unmask.study.demo import real_model
    from unmask.tokenizer import Tokenizer

    (place / "text.txt").write_text("\n\n".join(pydoc_data.topics.topics.values()), encoding="utf-8")
    prepare(sources([place / "text.txt"], layout="blank"), Tokenizer.load(real_model()), place / "shards", engine="here")
    return place / "shards"


if __name__ == "__main__":
    main()
