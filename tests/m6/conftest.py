"""Fixtures of M6's tests: random models, as in M3's."""

from __future__ import annotations

import pytest

from tests.m1.support import make_text_model
from tests.m3.beam_oracle import BeamOracle
from tests.m3.oracle import Oracle


@pytest.fixture(scope="session")
def text_model_folder(tmp_path_factory):
    """With a byte-level tokenizer and an EOS."""
    return make_text_model(tmp_path_factory.mktemp("model"), max_position_embeddings=256)


@pytest.fixture(scope="session")
def oracle(tmp_path_factory) -> Oracle:
    """Without an EOS, so that only lengths end a sequence."""
    return Oracle(tmp_path_factory.mktemp("oracle"))


@pytest.fixture(scope="session")
def beam_oracle(tmp_path_factory) -> BeamOracle:
    return BeamOracle(tmp_path_factory.mktemp("beams"))
