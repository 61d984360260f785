"""The two LSTMs: their states against torch's own, sequence by sequence; folders, and what of a config is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import unmask
from unmask.errors import UserError
from unmask.model import families, store
from unmask.model.card import Card
from unmask.model.families.bilm import Sides
from unmask.model.layout import Packed, Padded
from unmask.model.model import Model
from unmask.tokenizer import Tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")  # what torch says of one sequence alone
LENGTHS = (9, 1, 4, 9, 2, 7)
PIECES = {piece: i for i, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"])}


def tiny(**heads: int) -> Model:
    shape = families.shape("bilm.small").without_dropout()
    words = replace(shape.embed, vocabulary=12, positions=32)  # type: ignore[type-var]
    return families.new(replace(shape, embed=words, encoder=Sides(24, 3, 20)).with_heads(**heads), seed=1)


def tokens() -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randint(0, 12, (length,), generator=draw) for length in LENGTHS]


def given() -> tuple[tuple[dict[str, Tensor], Packed], tuple[dict[str, Tensor], Padded]]:
    """The same sequences packed and padded; what stands in the padding is no matter."""
    width = max(LENGTHS) + 2
    mask = torch.arange(width)[None] < torch.tensor(LENGTHS)[:, None]
    rows = torch.full(mask.shape, 7)
    rows[mask] = torch.cat(tokens())
    positions = torch.arange(width).expand(mask.shape)
    packed = {"tokens": rows[mask], "positions": positions[mask]}
    return (packed, Packed.of(LENGTHS)), ({"tokens": rows, "positions": positions}, Padded(len(LENGTHS), width, mask))


def by_hand(model: Model, ids: Tensor) -> list[Tensor]:
    """Every state of one sequence: torch's LSTM over it alone, and over it turned round."""
    ahead = back = model.embed.words(ids)
    states = [torch.cat([ahead, back], -1)]
    for number, layer in enumerate(model.encoder.layers):
        one, other = layer.ahead(ahead)[0], layer.back(back.flip(0))[0].flip(0)
        ahead, back = (one, other) if number == 0 else (ahead + one, back + other)
        states.append(torch.cat([ahead, back], -1))
    return states


@torch.inference_mode()
@pytest.mark.parametrize("double", [False, True])
def test_states_are_those_of_plain_lstms(double: bool) -> None:
    model = tiny().double() if double else tiny()
    expected = [torch.cat(parts) for parts in zip(*(by_hand(model, one) for one in tokens()), strict=True)]
    for inputs, layout in given():
        found = list(model.encoder.states(model.enter(inputs, layout), None, layout))
        assert len(found) == len(expected) == 4
        assert all((layout.tokens(one) - other).abs().max() < (1e-12 if double else 1e-6) for one, other in zip(found, expected, strict=True))
        assert torch.equal(model(inputs, layout), found[-1])


@torch.inference_mode()
def test_packed_is_padded() -> None:
    model = tiny(classify=2, tag=3)
    (one, packed), (other, laid) = given()
    flat, rows = model(one, packed), model(other, laid)
    assert (flat - laid.tokens(rows)).abs().max() < 1e-6
    for head in ("classify", "tag"):
        a, b = model.read(head, flat, packed), model.read(head, rows, laid)
        assert (a - (laid.tokens(b) if head == "tag" else b)).abs().max() < 1e-6


@torch.inference_mode()
def test_a_text_is_the_mean_of_its_states() -> None:
    model = tiny(classify=2)
    (inputs, layout), _ = given()
    rows = model(inputs, layout)
    means = torch.stack([one.mean(0) for one in layout.split(rows)])
    assert (model.read("classify", rows, layout) - model.heads["classify"].out(means)).abs().max() < 1e-6  # type: ignore[operator, union-attr]


def test_gradients_packed_are_padded() -> None:
    model = tiny().double()
    found = []
    for inputs, layout in given():
        model.zero_grad()
        layout.tokens(model(inputs, layout)).square().sum().backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert all((one - found[1][name]).norm() < 1e-9 * one.norm() for name, one in found[0].items())
    assert len(found[0]) == len(list(model.parameters()))


def test_it_starts_the_same_for_the_same_seed_and_forgets_nothing() -> None:
    torch.manual_seed(0)
    one, other = tiny(tag=2), tiny(tag=2)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    for lstm in (part for part in one.encoder.modules() if isinstance(part, nn.LSTM)):
        assert torch.equal(lstm.bias_hh_l0, torch.tensor([0.0, 1.0, 0.0, 0.0]).repeat_interleave(20))
        assert not lstm.bias_ih_l0.any()
        for weight in (lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.weight_hr_l0):
            bound = weight.shape[1] ** -0.5
            assert 0.8 * bound < weight.abs().max() <= bound


def test_a_folder_answers_and_loads_only_here(tmp_path: Path) -> None:
    loaded = store.Loaded(tiny(tag=2, classify=2), Card(labels=("no", "yes"), length=32), Tokenizer.from_vocabulary(PIECES), {}, {})
    store.save(loaded, tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["model_type"] == "unmask-bilm"
    predictor = unmask.load(tmp_path / "model")
    assert {entity.label for entity in predictor.tag("a b c")} <= {"no", "yes"}
    assert predictor.classify("a b").label in ("no", "yes")
    vectors = predictor.embed(["a b c", "g"])
    assert vectors.shape == (2, 24)
    model = predictor.model
    ids = torch.tensor([2, 5, 6, 7, 3])
    with torch.inference_mode():
        assert torch.allclose(by_hand(model, ids)[-1].mean(0), torch.from_numpy(vectors[0]), atol=1e-6)
    with pytest.raises(UserError, match="a bilm has no attention to show"):
        predictor.attention("a b")


def test_new_words_begin_as_what_they_were_made_of(tmp_path: Path) -> None:
    store.save(store.Loaded(tiny(), Card(length=32), Tokenizer.from_vocabulary(PIECES), {}, {}), tmp_path / "model")
    predictor = unmask.load(tmp_path / "model")
    assert predictor.extend(["ab"]) == ["ab"]
    predictor.save(tmp_path / "more")
    assert unmask.load(tmp_path / "more").embed("ab").shape == (24,)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"hidden_size": 25}, "a width of 25 is of two sides, each narrower than its 20 cells"),
        ({"intermediate_size": 12}, "a width of 24 is of two sides, each narrower than its 12 cells"),
        ({"num_hidden_layers": 10**6}, "says 1,000,000 layers, the weights beside it are"),
        ({"hidden_dropout_prob": 7}, "config.json says hidden_dropout_prob is 7"),
    ],
    ids=str,
)
def test_a_config_that_cannot_be(said: dict[str, object], says: str, tmp_path: Path) -> None:
    store.save(store.Loaded(tiny(), Card(length=32), Tokenizer.from_vocabulary(PIECES), {}, {}), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | said))
    with pytest.raises(UserError, match=says):
        store.load(tmp_path / "model")
