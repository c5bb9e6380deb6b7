"""Fixtures of M1's tests: a random model with a byte-level tokenizer, and an engine on it."""

from __future__ import annotations

import pytest

from folovllm import LLMEngine, ModelConfig
from tests.m1.support import make_text_model


@pytest.fixture(scope="session")
def text_model_folder(tmp_path_factory):
    return make_text_model(tmp_path_factory.mktemp("model"), max_position_embeddings=64)


@pytest.fixture
def engine(text_model_folder):
    return LLMEngine(ModelConfig(str(text_model_folder), dtype="float32", device="cpu"))
