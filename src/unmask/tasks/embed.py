"""One vector a text, as the folder pools and normalises; without a word from the folder, the mean of all tokens, or the class token of a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from unmask.data.batch import Batch
from unmask.errors import UserError, near
from unmask.model.heads import mean, pool
from unmask.model.model import Model
from unmask.tasks.base import Array, Input, Task, Window


class Embed(Task):
    """`prompt` is the name of one of the folder's prompts; None takes the one the folder names, "" takes none."""

    head = ""
    over = "texts"
    pairs = False
    defaults: ClassVar[Mapping[str, Any]] = {"prompt": None}

    def windows(self, inputs: Sequence[str | tuple[str, str]]) -> list[Window]:
        if self.card.length and self.taken >= self.card.length - 1:
            raise UserError(f"the prompt takes {self.taken} of the model's {self.card.length} pieces and leaves no room for a text; use a shorter one")
        return super().windows([self.prompt + str(text) for text in inputs])

    def outputs(self, model: Model, rows: Tensor, batch: Batch) -> Tensor:
        if "pixels" in batch.inputs:
            extra = model.config.embed.extra  # type: ignore[union-attr]
            pooled = (batch.layout.at(rows) if extra else mean(rows, batch.layout)).float()  # a CNN has no class token
        else:
            skip = 0 if self.card.include_prompt else self.taken
            pooled = pool(rows, batch.layout, self.card.pooling or ("mean",), batch.inputs["positions"], skip)
        return F.normalize(pooled, dim=-1) if self.card.normalise else pooled

    def decode(self, given: Input, windows: Sequence[Window], outputs: Sequence[Array]) -> Array:
        return outputs[0]

    @cached_property
    def prompt(self) -> str:
        """The words themselves."""
        name = self.card.prompt if self.options["prompt"] is None else self.options["prompt"]
        if not name:
            return ""
        if name not in self.card.prompts:
            raise UserError(f"the model has no prompt {name!r}{near(name, self.card.prompts) if self.card.prompts else ' nor any other; leave it out'}")
        return self.card.prompts[name]

    @cached_property
    def taken(self) -> int:
        """How many pieces stand before the text's own where there is a prompt: [CLS] and the prompt's."""
        return len(self.pieces.encode([self.prompt])[0]) - 1 if self.prompt else 0
