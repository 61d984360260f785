"""ModernBERT: its windows at full width, configs of either age, and the head that all its heads begin with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from models import Case, make
from unmask.errors import UserError
from unmask.model import store
from unmask.model.layout import FULL, Packed, Padded, local

WORDS = Case("modernbert", "ModernBertForMaskedLM", ("words",))


def config_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text()))


@torch.inference_mode()
def test_windows_as_published(tmp_path: Path) -> None:
    """Longer than the window of 64 to either side, so that some are not seen."""
    settings = {"local_attention": 128, "max_position_embeddings": 512, "num_hidden_layers": 4}
    theirs: Any = make(Case("modernbert", "ModernBertModel", (), settings), tmp_path)
    ours = store.load(tmp_path).model
    lengths = [400, 131, 64]
    mask = torch.arange(400)[None] < torch.tensor(lengths)[:, None]
    tokens = torch.randint(4, 80, (3, 400), generator=torch.Generator().manual_seed(0))
    expected = theirs(tokens, attention_mask=mask.long()).last_hidden_state[mask]
    places = torch.arange(400).expand(3, 400)
    found = ours({"tokens": tokens[mask], "positions": places[mask]}, Packed.of(lengths))
    assert (found - expected).abs().max() < 1e-5
    assert (ours({"tokens": tokens, "positions": places}, Padded(3, 400, mask))[mask] - expected).abs().max() < 1e-5


def test_a_config_of_transformers_4(tmp_path: Path) -> None:
    make(Case("modernbert", "ModernBertModel", (), {"num_hidden_layers": 7}), tmp_path)
    new = store.load(tmp_path).model.config
    config = config_of(tmp_path)
    for name in ("layer_types", "rope_parameters"):
        config.pop(name)
    config |= {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert store.load(tmp_path).model.config == new
    assert new.encoder.reach == (FULL, local(4), local(4))  # type: ignore[attr-defined]
    assert new.encoder.rotary == (160_000.0, 10_000.0, 10_000.0)  # type: ignore[attr-defined]
    config |= {"global_attn_every_n_layers": 2, "global_rope_theta": 5000.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    other = store.load(tmp_path).model.config.encoder
    assert (other.reach, other.rotary) == ((FULL, local(4)), (5000.0, 10_000.0))  # type: ignore[attr-defined]


def test_a_new_head_keeps_the_layer_that_was_pretrained(tmp_path: Path) -> None:
    """As transformers does: only the last layer is new."""
    theirs: Any = make(WORDS, tmp_path)
    loaded = store.load(tmp_path, heads={"classify": 3})
    head = loaded.model.heads["classify"]
    assert torch.equal(head.dense.weight, theirs.head.dense.weight)  # type: ignore[union-attr, arg-type]
    assert torch.equal(head.norm.weight, theirs.head.norm.weight)  # type: ignore[union-attr, arg-type]
    assert head.out.weight.abs().max() <= 0.04  # type: ignore[union-attr, operator]
    assert not torch.equal(head.out.weight, store.load(tmp_path, heads={"classify": 3}, seed=1).model.heads["classify"].out.weight)  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"decoder_bias": False}, "decoder_bias is false"),
        ({"layer_types": ["full_attention"]}, "layer_types for its 3 layers"),
        ({"layer_types": ["full_attention", "chunked", "full_attention"]}, "each full_attention or sliding_attention"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 4}}}, "stretches its rotary positions"),
        ({"rope_parameters": {"full_attention": {"rope_theta": "big"}}}, "base of rotary positions is 'big'"),
        ({"classifier_pooling": "last"}, "pools a text by 'last'"),
        ({"hidden_size": 50, "num_attention_heads": 4}, "width 50 is not a multiple of 4 heads"),
    ],
)
def test_configs_that_are_refused(said: dict[str, Any], says: str, tmp_path: Path) -> None:
    make(WORDS, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config_of(tmp_path) | said))
    with pytest.raises(UserError, match=re.escape(says)):
        store.load(tmp_path)
