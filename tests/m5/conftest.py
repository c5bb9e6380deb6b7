"""Fixtures of M5's tests: random models, as in M3's."""

from __future__ import annotations

import pytest

from tests.m3.beam_oracle import BeamOracle
from tests.m3.conftest import oracle, text_model_folder  # noqa: F401


@pytest.fixture(scope="session")
def beam_oracle(tmp_path_factory) -> BeamOracle:
    return BeamOracle(tmp_path_factory.mktemp("beam_oracle"))
