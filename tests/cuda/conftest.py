"""Fixtures of the tests of what the root's engine has on CUDA: random models, as in M4's."""

from __future__ import annotations

from tests.m4.conftest import fake_cuda, oracle, patch_once_a_launch, small_oracle  # noqa: F401
