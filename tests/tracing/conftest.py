"""Fixtures of the traces' tests: a random model with a byte-level tokenizer."""

from tests.m6.conftest import text_model_folder  # noqa: F401
