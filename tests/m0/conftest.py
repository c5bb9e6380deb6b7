"""What several of M0's tests read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import add_byte_tokenizer, make_hf_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole model: weights and tokenizer. Tests that change it make their own."""
    made = make_hf_folder(tmp_path_factory.mktemp("whole"), "qwen3", vocab_size=260)
    add_byte_tokenizer(made)
    return made
