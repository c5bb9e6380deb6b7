"""Fixtures of M8's tests: random models, as in M6's."""

from __future__ import annotations

from tests.m4.conftest import fake_cuda, patch_once_a_launch  # noqa: F401
from tests.m6.conftest import beam_oracle, oracle, text_model_folder  # noqa: F401
