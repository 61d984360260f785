"""New words for a model that is trained already, such as those of a trade or of the news: each begins as what it was made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from unmask.errors import UserError
from unmask.model.embed import TextConfig
from unmask.model.store import Loaded


@torch.no_grad()
def extend(loaded: Loaded, words: Sequence[str]) -> list[str]:
    """Add words to the vocabulary, in place, and return those that were new; where one cannot be added, nothing changes.

    A word's vector is the mean of its pieces' until now, and so is what the word head has for it. Texts without new words read
    as before, to the bit.
    """
    model, tokenizer = loaded.model, loaded.tokenizer
    embed = model.config.embed
    if tokenizer is None or not isinstance(embed, TextConfig):
        raise UserError("a model of pictures has no vocabulary to add words to; load one that reads text")
    first = tokenizer.size
    made = tokenizer.add(words)
    if not made:
        return []
    pieces = [ids or list(range(first)) for ids in made.values()]
    model.embed.words.weight = _with_means(model.embed.words.weight, first, pieces)
    rows = model.embed.words.num_embeddings = len(model.embed.words.weight)
    model.embed.config = replace(embed, vocabulary=rows)
    heads = tuple((head, rows if head == "words" else count) for head, count in model.config.heads)
    model.config = replace(model.config, embed=model.embed.config, heads=heads)
    if "words" in model.heads:
        decoder: nn.Linear = model.heads["words"].decoder  # type: ignore[assignment]
        decoder.bias = _with_means(decoder.bias, first, pieces)
        if not model.tied:
            decoder.weight = _with_means(decoder.weight, first, pieces)
        decoder.out_features = rows
        model.tie()
    return list(made)


def _with_means(rows: Tensor, first: int, pieces: Sequence[list[int]]) -> nn.Parameter:
    """The rows, from `first` on the means of others. What stood there no tokenizer had a piece for."""
    new = torch.stack([rows[ids].float().mean(0) for ids in pieces]).to(rows.dtype)
    return nn.Parameter(torch.cat([rows[:first], new, rows[first + len(new) :]]), requires_grad=rows.requires_grad)
