"""Every family x head against transformers, float32 on a CPU: outputs within 1e-5, and names both ways."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from models import CASES, PICTURES, Case, make
from unmask.model import store
from unmask.model.embed import ImageConfig
from unmask.model.heads import mean
from unmask.model.layout import Layout, Packed, Padded, Recording
from unmask.model.model import Model

LENGTHS = (64, 1, 7, 33, 2, 64, 15)  # full, one token, odd ones
PLAIN = [case for case in CASES if not case.heads and case.family != "resnet"]  # a CNN has no attention
OUTPUTS = {"words": ("prediction_logits", "logits"), "next": ("seq_relationship_logits", "sop_logits", "logits")}


@pytest.fixture(params=CASES, ids=lambda case: case.id)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param  # type: ignore[no-any-return]


def text_inputs(case: Case, seed: int = 1) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    width = max(LENGTHS)
    mask = torch.arange(width)[None] < torch.tensor(LENGTHS)[:, None]
    kinds = {"distilbert": 0, "modernbert": 0, "roberta": 1}.get(case.family, 2)
    segments = torch.randint(0, case.settings.get("type_vocab_size", kinds) or 1, (len(LENGTHS), width), generator=draw)
    tokens = torch.randint(4, 80, (len(LENGTHS), width), generator=draw)  # RoBERTa numbers no position where it sees its [PAD]
    return {"input_ids": tokens, "attention_mask": mask.long()} | ({"token_type_ids": segments} if kinds else {})


def padded(given: dict[str, Tensor]) -> tuple[dict[str, Tensor], Layout]:
    mask = given["attention_mask"].bool()
    inputs = {"tokens": given["input_ids"], "positions": torch.arange(mask.shape[1]).expand(mask.shape)}
    inputs |= {"segments": given["token_type_ids"]} if "token_type_ids" in given else {}
    return inputs, Padded(*mask.shape, mask)


def packed(given: dict[str, Tensor]) -> tuple[dict[str, Tensor], Layout]:
    inputs, layout = padded(given)
    return {name: layout.tokens(one) for name, one in inputs.items()}, Packed.of(LENGTHS)


def theirs_of(head: str, out: object) -> Tensor:
    if head == "spans":
        return torch.stack([out.start_logits, out.end_logits], -1)  # type: ignore[attr-defined]
    if head == "replaced":
        return out.logits[..., None]  # type: ignore[attr-defined, no-any-return]
    names = OUTPUTS.get(head, ("logits",))
    return next(getattr(out, name) for name in names if hasattr(out, name))  # type: ignore[no-any-return]


@torch.inference_mode()
def differences(ours: Model, reference: torch.nn.Module, case: Case, layout_of: object) -> dict[str, float]:
    """The largest difference of every output that there is to compare."""
    if case.family in PICTURES:
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
        if getattr(out, "pooler_output", None) is not None:
            found["pooler"] = (ours.pooler(rows, layout) - out.pooler_output).abs().max().item()  # type: ignore[misc]
    for head in case.heads:
        logits, expected = ours.read(head, rows, layout), theirs_of(head, out)
        over_tokens = ours.heads[head].over == "tokens"
        found[head] = ((layout.tokens(logits) - real.tokens(expected)) if over_tokens else logits - expected).abs().max().item()
    return found


def pictures(ours: Model, count: int = 3) -> tuple[Tensor, int]:
    """Random ones of the size the model was made for (a ResNet takes any), and how many tokens each becomes."""
    config = ours.config.embed
    assert isinstance(config, ImageConfig)
    size = (70, 45) if config.partial else config.size
    return torch.randn(count, config.channels, *size, generator=torch.Generator().manual_seed(2)), config.tokens(size)


def picture_differences(ours: Model, reference: torch.nn.Module, flat: bool) -> dict[str, float]:
    pixels, tokens = pictures(ours)
    layout = Packed.of([tokens] * 3) if flat else Padded(3, tokens)
    rows, out = ours({"pixels": pixels}, layout), reference(pixels)
    if not hasattr(out, "last_hidden_state"):
        return {"classify": (ours.read("classify", rows, layout) - out.logits).abs().max().item()}
    theirs = out.last_hidden_state
    if theirs.dim() == 4:  # a map
        pooled, theirs = mean(rows, layout), theirs.flatten(2).mT
        return {"rows": (layout.tokens(rows) - theirs.flatten(0, 1)).abs().max().item(), "mean": (pooled - out.pooler_output[:, :, 0, 0]).abs().max().item()}
    return {
        "rows": (layout.tokens(rows) - theirs.flatten(0, 1)).abs().max().item(),
        "pooler": (ours.pooler(rows, layout) - out.pooler_output).abs().max().item(),  # type: ignore[misc]
    }


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
        if name.endswith(("predictions.bias", "lm_head.bias")) and not reference.config.tie_word_embeddings:  # type: ignore[union-attr]
            continue  # transformers keeps it but computes with decoder.bias
        assert torch.equal(state[name], tensor), name
    said, kept = reference.config.to_dict(), again.config.to_dict()  # type: ignore[union-attr, operator]
    ours = (
        "_name_or_path",
        "architectures",
        "dtype",
        "classifier_dropout",
        "problem_type",
        "id2label",
        "label2id",
        "sinusoidal_pos_embds",
        "global_attn_every_n_layers",
    )
    assert {name: kept.get(name) for name in said if name not in ours} == {name: value for name, value in said.items() if name not in ours}


def test_every_parameter_has_a_gradient(case: Case, tmp_path: Path) -> None:
    make(case, tmp_path)
    ours = store.load(tmp_path).model
    inputs: dict[str, Tensor]
    layout: Layout
    if case.family in PICTURES:
        pixels, tokens = pictures(ours, 2)
        inputs, layout = {"pixels": pixels}, Padded(2, tokens)
    else:
        inputs, layout = packed(text_inputs(case))
    rows = ours(inputs, layout)
    loss = rows.square().sum() if not ours.heads else torch.stack([ours.read(head, rows, layout).square().sum() for head in ours.heads]).sum()
    if not ours.heads and ours.pooler is not None:
        loss = loss + ours.pooler(rows, layout).square().sum()
    loss.backward()
    dead = [name for name, p in ours.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert not dead


@pytest.mark.parametrize("case", [case for case in PLAIN if case.family not in PICTURES], ids=lambda case: case.id)
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


@pytest.mark.parametrize("family", ["vit", "deit"])
def test_image_attention_maps(family: str, tmp_path: Path) -> None:
    reference = make(Case(family, {"vit": "ViTModel", "deit": "DeiTModel"}[family], ()), tmp_path)
    reference.set_attn_implementation("eager")  # type: ignore[operator]
    ours = store.load(tmp_path).model
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        expected = reference(pixels, output_attentions=True).attentions
        recording = Recording(Padded(2, 16 + ours.config.embed.extra))  # type: ignore[union-attr]
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


def test_padding_typed_in_a_text_has_its_own_position(tmp_path: Path) -> None:
    """RoBERTa gives it the padding's row, and counts on as if it were not there."""
    reference = make(Case("roberta", "RobertaModel", ()), tmp_path)
    ours = store.load(tmp_path).model
    rows = [[2, 1, 7, 1, 1, 9, 3], [5, 6, 3], [1, 5, 3]]
    layout = Packed.of([len(row) for row in rows])
    tokens, positions = (torch.cat([torch.tensor(part) for part in parts]) for parts in (rows, [range(len(row)) for row in rows]))
    with torch.inference_mode():
        found = ours({"tokens": tokens, "positions": positions}, layout).split([len(row) for row in rows])
        for row, one in zip(rows, found, strict=True):
            assert (one - reference(torch.tensor([row]), attention_mask=torch.ones(1, len(row))).last_hidden_state[0]).abs().max() <= 1e-5
