"""Left to right: what is asked, counted by hand, and the loss against transformers' BertLMHeadModel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

import runs
import unmask
from unmask.data.batch import Batch
from unmask.data.stream import IGNORED
from unmask.errors import UserError
from unmask.model import families, store
from unmask.model.encoder import EncoderConfig
from unmask.model.layout import CAUSAL, Packed
from unmask.objectives.nsp import NSP
from unmask.train import loop
from unmask.train.distribute import Group
from unmask.train.feed import padded
from unmask.train.prepared import Prepared


@pytest.fixture(scope="module")
def ready(shards: Path) -> Prepared:
    return Prepared(runs.learning("causal", shards, precision="float64"), Path(), Group())


@pytest.fixture(scope="module")
def batch(ready: Prepared) -> Batch:
    return next(ready.stream(0.0).batches())[1]


def test_every_token_is_asked_for_the_next(batch: Batch) -> None:
    """Counted one by one; every token counts but the first of a sequence, which nothing foretells."""
    expected = []
    for start, end in zip(batch.layout.bounds[:-1].tolist(), batch.layout.bounds[1:].tolist(), strict=True):  # type: ignore[attr-defined]
        expected += [(place, int(batch.inputs["tokens"][place + 1])) for place in range(start, end - 1)]
    real = batch.targets["words.labels"] != IGNORED
    assert list(zip(batch.targets["words.rows"][real].tolist(), batch.targets["words.labels"][real].tolist(), strict=True)) == expected
    assert len(expected) == len(batch.inputs["tokens"]) - len(batch.layout.lengths)
    assert len(batch.targets["words.rows"]) == len(batch.inputs["tokens"]), "as many rows as tokens, whatever the sequences"


def theirs_of(ready: Prepared, batch: Batch, place: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Its logits, the tokens in rows, and which of them are real."""
    store.save(ready.folder({}), place / "model")
    theirs = transformers.BertLMHeadModel.from_pretrained(place / "model", attn_implementation="eager").double().eval()
    assert theirs.config.is_decoder
    rows = padded(replace(batch, inputs={**batch.inputs, "mask": torch.ones_like(batch.inputs["tokens"])}), 48).inputs
    segments = {"token_type_ids": rows["segments"]} if "segments" in rows else {}
    with torch.no_grad():
        return theirs(rows["tokens"], attention_mask=rows["mask"], use_cache=False, **segments).logits, rows["tokens"], rows["mask"].bool()


def test_the_loss_is_theirs(ready: Prepared, batch: Batch, tmp_path: Path) -> None:
    """Theirs is rounded to float32 before it is a loss, so their logits are taken."""
    logits, tokens, mask = theirs_of(ready, batch, tmp_path)
    asked = mask[:, 1:]
    expected = F.cross_entropy(logits[:, :-1][asked], tokens[:, 1:][asked], reduction="sum")
    with torch.no_grad():
        for one in (batch, padded(batch, 48)):
            found = ready.learner(one)
            assert abs(float(found["words"] - expected)) / int(asked.sum()) < 1e-9
            assert int(found["words.right"]) == int((logits[:, :-1].argmax(-1) == tokens[:, 1:])[asked].sum())


def test_with_pairs_it_is_theirs_as_well(shards: Path, tmp_path: Path) -> None:
    """Next sentence beside it reads the first token, which sees nothing: it learns nothing, but it may stand there."""
    run = runs.learning("causal", shards, precision="float64")
    ready = Prepared(replace(run, objective=(*run.objective, NSP())), tmp_path, Group())
    batch = next(ready.stream(0.0).batches())[1]
    assert "segments" in batch.inputs
    store.save(ready.folder({}), tmp_path / "both")
    assert tuple(store.load(tmp_path / "both").model.heads) == ("words", "next")
    assert store.load(tmp_path / "both").model.config.encoder.reach == (CAUSAL,)  # type: ignore[attr-defined]


def test_a_token_does_not_see_what_follows(ready: Prepared, batch: Batch) -> None:
    changed = batch.inputs["tokens"].clone()
    last = batch.layout.bounds[1:].long() - 1  # type: ignore[attr-defined]
    changed[last] = 7
    with torch.no_grad():
        one, other = (ready.learner.model({**batch.inputs, "tokens": tokens}, batch.layout) for tokens in (batch.inputs["tokens"], changed))
    moved = (one != other).any(-1).nonzero().flatten()
    assert moved.tolist() == last.tolist()


def test_its_folder_is_a_decoder_everywhere(shards: Path, tmp_path: Path) -> None:
    loop.train(runs.learning("causal", shards, stop="3"), tmp_path / "run")
    ours = store.load(tmp_path / "run").model
    assert isinstance(ours.config.encoder, EncoderConfig)
    assert ours.config.encoder.reach == (CAUSAL,)
    theirs, report = transformers.BertLMHeadModel.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert not any(report.values())
    assert theirs.config.architectures == ["BertLMHeadModel"]
    tokens = torch.randint(5, 400, (1, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        layout = Packed.of([20])
        rows = ours({"tokens": tokens[0], "positions": torch.arange(20)}, layout)
        assert (ours.read("words", rows, layout) - theirs(tokens).logits[0]).abs().max() < 1e-5
    assert unmask.load(tmp_path / "run").embed("the list").shape == (32,)
    store.save(store.load(tmp_path / "run"), tmp_path / "again")
    assert store.load(tmp_path / "again").model.config == ours.config


def test_masked_words_can_be_made_causal(shards: Path, tmp_path: Path) -> None:
    """From a folder that reads both ways; and one that reads one way goes on so."""
    loop.train(runs.small(shards, stop="2"), tmp_path / "both")
    run = runs.learning("causal", shards, stop="2")
    loop.train(replace(run, start=str(tmp_path / "both")), tmp_path / "one")
    assert store.load(tmp_path / "one").model.config.encoder.reach == (CAUSAL,)  # type: ignore[attr-defined]


@pytest.mark.parametrize("family", ["distilbert", "modernbert"])
def test_a_family_whose_folder_could_not_say_it(family: str, shards: Path) -> None:
    shape = families.shape(f"{family}.base")
    narrow = replace(shape.encoder, width=32, heads=2, hidden=64, depth=3)  # type: ignore[type-var]
    run = replace(runs.learning("causal", shards), model=replace(shape, encoder=narrow, embed=runs.shape().embed))
    with pytest.raises(UserError, match=f"the folder of a {family} cannot say that it reads one way; choose a shape of bert"):
        Prepared(run, Path(), Group())
