"""Replaced tokens: masks and samples derived again, both losses against transformers' ELECTRA, and what is left behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

import runs
import unmask
from unmask.data.batch import Batch
from unmask.data.keys import hashed, key, uniform
from unmask.data.stream import IGNORED
from unmask.errors import UserError
from unmask.model import families, store
from unmask.model.model import Model
from unmask.model.store import Loaded
from unmask.objectives.rtd import RTD, sampled
from unmask.train import loop
from unmask.train.distribute import Group
from unmask.train.feed import padded
from unmask.train.prepared import Prepared


@pytest.fixture(scope="module")
def ready(shards: Path) -> Prepared:
    return Prepared(runs.learning("rtd", shards, precision="float64"), Path(), Group())


@pytest.fixture(scope="module")
def batch(ready: Prepared) -> Batch:
    return next(ready.stream(0.0).batches())[1]


def generator(ready: Prepared) -> Model:
    found = ready.learner.beside["rtd"]
    assert isinstance(found, Model)
    return found


def real(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """The rows that are masked, what stood there, and the number of each."""
    asked = batch.targets["words.labels"] != IGNORED
    return tuple(batch.targets[f"words.{name}"][asked] for name in ("rows", "labels", "draws"))  # type: ignore[return-value]


def original(batch: Batch) -> Tensor:
    rows, labels, _ = real(batch)
    tokens = batch.inputs["tokens"].clone()
    tokens[rows] = labels
    return tokens


# ---- what is asked


def test_all_that_is_chosen_reads_mask(ready: Prepared) -> None:
    batches = [batch for _, (_, batch) in zip(range(20), ready.stream(0.0).batches(), strict=False)]
    for batch in batches:
        rows, labels, _ = real(batch)
        assert (batch.inputs["tokens"] == ready.source.pieces.mask).nonzero().flatten().tolist() == rows.tolist()
        assert not torch.from_numpy(ready.source.pieces.special)[labels].any()
        assert torch.equal(batch.targets["replaced.labels"], torch.zeros(len(batch.inputs["tokens"]), dtype=torch.long)), "every token is to be told"
    tokens = sum(len(batch.inputs["tokens"]) - 2 * len(batch.layout.lengths) for batch in batches)
    masks = sum(len(real(batch)[0]) for batch in batches)
    assert abs(masks / tokens - 0.15) < 5 * (0.15 * 0.85 / tokens) ** 0.5


def test_each_mask_has_a_number_of_its_own(batch: Batch) -> None:
    """Of (seed, epoch, sample, position) and nothing else."""
    assert batch.ids is not None
    samples = torch.repeat_interleave(batch.ids, batch.layout.lengths)
    rows, _, draws = real(batch)
    for row, draw in zip(rows.tolist(), draws.tolist(), strict=True):
        sample, position = np.uint64(samples[row]), np.uint64(batch.inputs["positions"][row])
        assert draw == uniform(hashed(key(0, "sample", 0), sample, position))[0]
    assert draws.dtype == torch.float64
    assert len(set(draws.tolist())) == len(draws)


# ---- sampling


def test_a_piece_is_where_its_number_falls() -> None:
    draw = torch.Generator().manual_seed(0)
    logits, draws = 3 * torch.randn(500, 30, generator=draw), torch.rand(500, generator=draw, dtype=torch.float64)
    found = sampled(logits, draws).tolist()
    for row, u, piece in zip(logits.double().exp().tolist(), draws.tolist(), found, strict=True):
        below = sum(row[:piece]) / sum(row)
        assert below - 1e-6 <= u <= below + row[piece] / sum(row) + 1e-6


def test_pieces_come_as_often_as_they_are_likely() -> None:
    logits = torch.tensor([2.0, 0.0, -1.0, float("-inf"), 1.0])
    count = 200_000
    found = sampled(logits.expand(count, 5), torch.from_numpy(uniform(hashed(key(1), np.arange(count)))))
    chances = logits.softmax(0)
    for piece, times in enumerate(torch.bincount(found, minlength=5).tolist()):
        spread = float(chances[piece] * (1 - chances[piece]) / count) ** 0.5
        assert abs(times / count - float(chances[piece])) <= 5 * spread, piece


@pytest.mark.parametrize("draw", [0.0, 1 - 2**-53])
def test_the_ends_of_the_range(draw: float) -> None:
    logits = torch.full((1, 30_522), float("-inf"))
    logits[0, 7] = 0.0
    assert sampled(logits, torch.tensor([draw], dtype=torch.float64)).tolist() == [7]


# ---- the generator


def test_it_embeds_by_the_model_s_own_tables(ready: Prepared) -> None:
    ours, theirs = ready.learner.model, generator(ready)
    for name in ("words", "positions", "segments", "norm"):
        assert getattr(theirs.embed, name) is getattr(ours.embed, name)
    assert theirs.embed.project.weight is not ours.embed.project.weight
    assert theirs.heads["words"].decoder.weight is ours.embed.words.weight  # type: ignore[union-attr]
    assert "replaced" not in theirs.heads
    assert not [name for name in ready.precision.masters if "rtd.embed" in name and "project" not in name], "each is learned once"


@pytest.mark.parametrize(
    ("shape", "share", "expected"),
    [("small", 0.25, (64, 1, 256)), ("base", 1 / 3, (256, 4, 1024)), ("large", 0.25, (256, 4, 1024))],
)
def test_published_widths(shape: str, share: float, expected: tuple[int, int, int]) -> None:
    """Table 6; but for its heads, ELECTRA's own generators: those released have the parameters of `electra.base_generator`."""
    config = families.shape(f"electra.{shape}")
    with torch.device("meta"):
        found = _config(config, share)
    assert (found.encoder.width, found.encoder.heads, found.encoder.hidden) == expected
    assert found.encoder.depth == config.encoder.depth
    assert (found.embed.width or found.encoder.width) == (config.embed.width or config.encoder.width)  # type: ignore[union-attr]


def _config(config: Any, share: float) -> Any:
    from unmask.objectives.rtd import _narrow

    return _narrow(config, share)


def test_as_wide_as_what_embeds_it_needs_no_layer_between() -> None:
    config = _config(replace(runs.electra(), embed=replace(runs.electra().embed, width=16)), 0.5)  # type: ignore[type-var]
    assert config.embed.width == 0


def test_widths_that_cannot_be(shards: Path) -> None:
    run = runs.learning("rtd", shards)
    with pytest.raises(UserError, match=r"a generator of 0.01 of 32 is 0 wide, which 1 heads cannot share; choose another rtd.generator"):
        Prepared(replace(run, objective=(RTD(generator=0.01),)), Path(), Group())
    with pytest.raises(UserError, match=r"a generator of 2 and a weight of 50.0 cannot be"):
        RTD(generator=2)
    with pytest.raises(UserError, match=r"a generator of 0.25 and a weight of 0 cannot be"):
        RTD(weight=0)


def test_it_learns_by_its_own_loss_alone(ready: Prepared, batch: Batch) -> None:
    """Nothing of the model's loss goes through what was put in."""
    found = ready.learner(batch)
    own = [p for name, p in ready.learner.named_parameters() if name.startswith("beside.")]
    assert all(grad is None for grad in torch.autograd.grad(found["replaced"], own, allow_unused=True, retain_graph=True))
    inner = list(ready.learner.model.encoder.parameters())
    assert all(grad is None for grad in torch.autograd.grad(found["words"], inner, allow_unused=True))


# ---- the losses


def theirs(ready: Prepared, place: Path) -> tuple[Any, Any]:
    """transformers' generator and discriminator, of our weights."""
    store.save(ready.folder({}), place / "model")
    beside = generator(ready)
    copy = families.build(beside.config)
    copy.load_state_dict({name: tensor.float() for name, tensor in beside.state_dict().items()})
    store.save(Loaded(copy, ready.loaded.card, ready.source.tokenizer, {}, {}), place / "generator")
    kinds = (transformers.ElectraForMaskedLM, place / "generator"), (transformers.ElectraForPreTraining, place / "model")
    return tuple(kind.from_pretrained(folder).double().eval() for kind, folder in kinds)  # type: ignore[return-value]


@torch.no_grad()
def test_the_losses_are_theirs(ready: Prepared, batch: Batch, tmp_path: Path) -> None:
    small, large = theirs(ready, tmp_path)
    rows, labels, draws = real(batch)
    before = padded(replace(batch, inputs={**batch.inputs, "mask": torch.ones_like(batch.inputs["tokens"])}), 48).inputs
    mask = before["mask"].bool()
    logits = small(before["tokens"], attention_mask=before["mask"]).logits[mask][rows]
    words = F.cross_entropy(logits, labels, reduction="sum")
    put = original(batch)
    put[rows] = (logits.softmax(-1).cumsum(-1) > draws[:, None]).int().argmax(-1)
    assert 0 < int((put == original(batch))[rows].sum()) + 1 < len(rows)
    replaced = put != original(batch)
    shown = torch.zeros_like(before["tokens"])
    shown[mask] = put
    scores = large(shown, attention_mask=before["mask"]).logits[mask]
    expected = F.binary_cross_entropy_with_logits(scores, replaced.double(), reduction="sum")
    for one in (batch, padded(batch, 48)):
        found = ready.learner(one)
        assert abs(float(found["words"] - words)) / len(rows) < 1e-9
        assert abs(float(found["replaced"] - expected)) / len(scores) < 1e-9
        assert int(found["replaced.right"]) == int(((scores > 0) == replaced).sum())
        assert int(found["words.right"]) == int((logits.argmax(-1) == labels).sum())
    again = large(shown, attention_mask=before["mask"], labels=_laid(replaced, mask)).loss
    assert float(again) == pytest.approx(float(expected) / len(scores), abs=1e-6), "their own loss is the mean over all tokens"


def _laid(values: Tensor, mask: Tensor) -> Tensor:
    found = torch.zeros(mask.shape, dtype=torch.long)
    found[mask] = values.long()
    return found


@torch.no_grad()
def test_a_guess_that_is_right_counts_as_not_replaced(ready: Prepared, batch: Batch) -> None:
    """A generator that is always right: nothing is replaced, and the model reads the text as it was."""
    sure = Prepared(ready.run, Path(), Group())
    rows, labels, _ = real(batch)

    class Right(torch.nn.Module):
        def forward(self, states: Tensor, layout: Any) -> Tensor:
            answers = batch.targets["words.labels"].clamp(min=0)
            return 1000.0 * F.one_hot(answers, 400).double()

    generator(sure).heads["words"] = Right()
    made, losses = sure.run.objective[0].before(sure.learner, batch)
    assert torch.equal(made.inputs["tokens"], original(batch))
    assert not made.targets["replaced.labels"].any()
    assert int(losses["words.right"]) == len(rows) == len(labels)


@torch.no_grad()
def test_samples_do_not_move(ready: Prepared, shards: Path) -> None:
    """Whichever batch a sequence lies in, it is shown with the same pieces put in."""
    other = Prepared(replace(ready.run, data=replace(ready.run.data, tokens=256)), Path(), Group())
    found: list[dict[int, list[int]]] = []
    for one in (ready, other):
        seen: dict[int, list[int]] = {}
        for _, (_, batch) in zip(range(12), one.stream(0.0).batches(), strict=False):
            for form in (batch, padded(batch, 48)):
                made, _ = one.run.objective[0].before(one.learner, form)
                parts = made.layout.split(made.inputs["tokens"])
                assert batch.ids is not None
                now = {sample: part.tolist() for sample, part in zip(batch.ids.tolist(), parts, strict=True)}
                assert all(seen.get(sample, part) == part for sample, part in now.items())
                seen |= now
        found.append(seen)
    shared = found[0].keys() & found[1].keys()
    assert len(shared) > 20
    assert all(found[0][sample] == found[1][sample] for sample in shared)


# ---- what is left


def test_its_folder_is_a_discriminator(shards: Path, tmp_path: Path) -> None:
    loop.train(runs.learning("rtd", shards, stop="3"), tmp_path / "run")
    found, report = transformers.ElectraForPreTraining.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert not any(report.values())
    assert found.config.architectures == ["ElectraForPreTraining"]
    words = unmask.load(tmp_path / "run").ask("replaced", "the list is here").words
    ids = transformers.BertTokenizer.from_pretrained(tmp_path / "run")("the list is here", return_tensors="pt")
    with torch.no_grad():
        scores = found(**ids).logits.sigmoid()[0]
    assert [word.text for word in words] == ["the", "list", "is", "here"]
    assert all(any(abs(word.score - float(score)) < 1e-5 for score in scores) for word in words)


def test_the_weight_counts(shards: Path) -> None:
    run = runs.learning("rtd", shards)
    assert Prepared(run, Path(), Group()).weights == {"words": 1.0, "replaced": 50.0}
    assert Prepared(run.set("rtd.weight", "7"), Path(), Group()).weights == {"words": 1.0, "replaced": 7.0}
