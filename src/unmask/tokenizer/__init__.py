"""Texts to pieces and back."""

from unmask.tokenizer.wordpiece import Encoding, Tokenizer

__all__ = ["Encoding", "Tokenizer"]
