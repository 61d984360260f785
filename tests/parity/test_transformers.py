"""Every family x head against transformers, float32 on a CPU: outputs within 1e-5, and names both ways."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from models import CASES, Case, make
from unmask.model import store
from unmask.model.layout import Layout, Packed, Padded, Recording
from unmask.model.model import Model

LENGTHS = (64, 1, 7, 33, 2, 64, 15)  # full, one token, odd ones
TEXTS = [case for case in CASES if case.family == "bert"]
OUTPUTS = {"words": ("prediction_logits", "logits"), "next": ("seq_relationship_logits", "logits")}


@pytest.fixture(params=CASES, ids=lambda case: case.id)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param  # type: ignore[no-any-return]


def text_inputs(case: Case, seed: int = 1) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    width = max(LENGTHS)
    mask = torch.arange(width)[None] < torch.tensor(LENGTHS)[:, None]
    return {
        "input_ids": torch.randint(0, 80, (len(LENGTHS), width), generator=draw),
        "token_type_ids": torch.randint(0, case.settings.get("type_vocab_size", 2), (len(LENGTHS), width), generator=draw),
        "attention_mask": mask.long(),
    }


def padded(given: dict[str, Tensor]) -> tuple[dict[str, Tensor], Layout]:
    mask = given["attention_mask"].bool()
    inputs = {"tokens": given["input_ids"], "segments": given["token_type_ids"], "positions": torch.arange(mask.shape[1]).expand(mask.shape)}
    return inputs, Padded(*mask.shape, mask)


def packed(given: dict[str, Tensor]) -> tuple[dict[str, Tensor], Layout]:
    inputs, layout = padded(given)
    return {name: layout.tokens(one) for name, one in inputs.items()}, Packed.of(LENGTHS)


def theirs_of(head: str, out: object) -> Tensor:
    if head == "spans":
        return torch.stack([out.start_logits, out.end_logits], -1)  # type: ignore[attr-defined]
    names = OUTPUTS.get(head, ("logits",))
    return next(getattr(out, name) for name in names if hasattr(out, name))  # type: ignore[no-any-return]


@torch.inference_mode()
def differences(ours: Model, reference: torch.nn.Module, case: Case, layout_of: object) -> dict[str, float]:
    """The largest difference of every output that there is to compare."""
    if case.family == "vit":
        return picture_differences(ours, reference, layout_of is packed)
    given = text_inputs(case)
    inputs, layout = layout_of(given)  # type: ignore[operator]
    rows = ours(inputs, layout)
    real = Padded(*given["attention_mask"].shape, given["attention_mask"].bool())
    asked = {name: one[:, None] for name, one in given.items()} if "choice" in case.heads else given  # theirs wants (batch, choices, length)
    out = reference(**asked)
    found = {}
    if hasattr(out, "last_hidden_state"):
        found["rows"] = (layout.tokens(rows) - real.tokens(out.last_hidden_state)).abs().max().item()
        found["pooler"] = (ours.pooler(rows, layout) - out.pooler_output).abs().max().item()  # type: ignore[misc]
    for head in case.heads:
        logits, expected = ours.read(head, rows, layout), theirs_of(head, out)
        over_tokens = ours.heads[head].over == "tokens"
        found[head] = ((layout.tokens(logits) - real.tokens(expected)) if over_tokens else logits - expected).abs().max().item()
    return found


def picture_differences(ours: Model, reference: torch.nn.Module, flat: bool) -> dict[str, float]:
    config = ours.config.embed
    pixels = torch.randn(3, config.channels, *config.size, generator=torch.Generator().manual_seed(2))  # type: ignore[union-attr]
    tokens = 1 + config.grid[0] * config.grid[1]  # type: ignore[union-attr]
    layout = Packed.of([tokens] * 3) if flat else Padded(3, tokens)
    rows, out = ours({"pixels": pixels}, layout), reference(pixels)
    if hasattr(out, "last_hidden_state"):
        return {
            "rows": (layout.tokens(rows) - out.last_hidden_state.flatten(0, 1)).abs().max().item(),
            "pooler": (ours.pooler(rows, layout) - out.pooler_output).abs().max().item(),  # type: ignore[misc]
        }
    return {"classify": (ours.read("classify", rows, layout) - out.logits).abs().max().item()}


@pytest.mark.parametrize("layout_of", [padded, packed], ids=["padded", "packed"])
def test_outputs_are_theirs(case: Case, layout_of: object, tmp_path: Path) -> None:
    reference = make(case, tmp_path)
    ours = store.load(tmp_path).model
    assert tuple(ours.heads) == case.heads
    found = differences(ours, reference, case, layout_of)
    assert found
    assert max(found.values()) <= 1e-5, found


def test_names_go_both_ways(case: Case, tmp_path: Path) -> None:
    """Load theirs, save ours, theirs loads ours: every tensor the same to the bit, and no name too few or too many."""
    reference = make(case, tmp_path / "theirs")
    store.save(store.load(tmp_path / "theirs"), tmp_path / "ours")
    again, report = getattr(transformers, case.architecture).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    state = again.state_dict()
    for name, tensor in reference.state_dict().items():
        if name == "cls.predictions.bias" and not reference.config.tie_word_embeddings:  # type: ignore[union-attr]
            continue  # transformers keeps it but computes with decoder.bias
        assert torch.equal(state[name], tensor), name
    for field in ("hidden_act", "layer_norm_eps", "hidden_dropout_prob", "initializer_range"):
        assert getattr(again.config, field) == getattr(reference.config, field)  # type: ignore[union-attr]


def test_every_parameter_has_a_gradient(case: Case, tmp_path: Path) -> None:
    make(case, tmp_path)
    ours = store.load(tmp_path).model
    if case.family == "bert":
        inputs, layout = packed(text_inputs(case))
    else:
        config = ours.config.embed
        inputs = {"pixels": torch.randn(2, config.channels, *config.size)}  # type: ignore[union-attr]
        layout = Padded(2, 1 + config.grid[0] * config.grid[1])  # type: ignore[union-attr]
    rows = ours(inputs, layout)
    loss = rows.square().sum() if not ours.heads else torch.stack([ours.read(head, rows, layout).square().sum() for head in ours.heads]).sum()
    if not ours.heads and ours.pooler is not None:
        loss = loss + ours.pooler(rows, layout).square().sum()
    loss.backward()
    dead = [name for name, p in ours.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert not dead


@pytest.mark.parametrize("case", TEXTS[:1] + TEXTS[-1:], ids=lambda case: case.id)
def test_attention_maps_are_their_eager_ones(case: Case, tmp_path: Path) -> None:
    reference = make(case, tmp_path)
    reference.set_attn_implementation("eager")  # type: ignore[operator]
    ours = store.load(tmp_path).model
    given = text_inputs(case)
    with torch.inference_mode():
        expected = reference(**given, output_attentions=True).attentions
        for layout_of in (padded, packed):
            inputs, layout = layout_of(given)
            recording = Recording(layout)
            fast, recorded = ours(inputs, layout), ours(inputs, recording)
            assert torch.equal(fast, recorded), "recording must not change what is computed"
            for theirs, maps in zip(expected, recording.maps, strict=True):
                for i, length in enumerate(LENGTHS):
                    assert np.abs((theirs[i, :, :length, :length] - maps[i]).numpy()).max() <= 1e-6


def test_image_attention_maps(tmp_path: Path) -> None:
    reference = make(Case("vit", "ViTModel", ()), tmp_path)
    reference.set_attn_implementation("eager")  # type: ignore[operator]
    ours = store.load(tmp_path).model
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        expected = reference(pixels, output_attentions=True).attentions
        recording = Recording(Padded(2, 17))
        ours({"pixels": pixels}, recording)
    assert max((theirs - torch.stack(maps)).abs().max().item() for theirs, maps in zip(expected, recording.maps, strict=True)) <= 1e-6


def test_another_image_size_is_resampled_as_theirs(tmp_path: Path) -> None:
    reference = make(Case("vit", "ViTModel", ()), tmp_path)
    ours = store.load(tmp_path).model
    pixels = torch.randn(2, 3, 48, 64, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        expected = reference(pixels, interpolate_pos_encoding=True).last_hidden_state
        found = ours({"pixels": pixels}, Padded(2, 1 + 6 * 8))
    assert (expected - found).abs().max() <= 1e-5
