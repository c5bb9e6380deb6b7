"""A random model with a byte-level tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.m1.support import make_text_model


@pytest.fixture(scope="session")
def text_model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text_model(tmp_path_factory.mktemp("model"), max_position_embeddings=256)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_text_model(tmp_path_factory.mktemp("cli")))
