"""Fixtures of M2's tests: a random model with a byte-level tokenizer, and an engine on it."""

from __future__ import annotations

import pytest

from tests.m1.support import make_text_model
from tests.m2.support import make_engine


@pytest.fixture(scope="session")
def text_model_folder(tmp_path_factory):
    return make_text_model(tmp_path_factory.mktemp("model"), max_position_embeddings=64)


@pytest.fixture
def engine(text_model_folder):
    """Room for eight sequences."""
    return make_engine(text_model_folder, max_num_seqs=8)
