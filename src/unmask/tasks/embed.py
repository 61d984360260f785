"""One vector a text, as the folder pools and normalises; without a word from the folder, the mean of all tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from unmask.data.batch import Batch
from unmask.errors import UserError, near
from unmask.model.heads import pool
from unmask.model.model import Model
from unmask.tasks.base import Array, Input, Task, Window


class Embed(Task):
    head = ""
    over = "texts"
    pairs = False

    def windows(self, inputs: Sequence[str | tuple[str, str]]) -> list[Window]:
        prompt = self._prompt()
        texts = [prompt + str(text) for text in inputs]
        if self.card.lowercase:
            texts = [text.lower() for text in texts]
        return super().windows(texts)

    def read(self, model: Model, rows: Tensor, batch: Batch) -> Tensor:
        if "pixels" in batch.inputs:
            pooled = batch.layout.first(rows).float()
        else:
            skip = 0 if self.card.include_prompt or not self._prompt() else len(self.pieces.encode([self._prompt()])[0]) - 1
            pooled = pool(rows, batch.layout, self.card.pooling or ("mean",), batch.inputs["positions"], skip)
        return F.normalize(pooled, dim=-1) if self.card.normalise else pooled

    def decode(self, given: Input, windows: Sequence[Window], outputs: Sequence[Array]) -> Array:
        return outputs[0]

    def _prompt(self) -> str:
        name = self.options.get("prompt") or self.card.prompt
        if name is None:
            return ""
        if name not in self.card.prompts:
            raise UserError(f"the model has no prompt {name!r}{near(name, self.card.prompts)}")
        return self.card.prompts[name]
