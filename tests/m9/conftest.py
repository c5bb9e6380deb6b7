"""Fixtures of M9's tests: random models, as in M6's; ranks that are threads."""

from __future__ import annotations

from tests.m6.conftest import beam_oracle, oracle  # noqa: F401
from tests.m9.ranks_support import rank_threads  # noqa: F401
