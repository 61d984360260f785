"""Answers from a model folder."""
