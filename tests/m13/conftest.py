"""Fixtures of M13's tests: random models, as in M6's; voices, as in M12's; ranks that are threads."""

from __future__ import annotations

from tests.m4.conftest import fake_cuda, patch_once_a_launch
from tests.m6.conftest import oracle
from tests.m9.ranks_support import rank_threads
from tests.m12.conftest import choir

__all__ = ["choir", "fake_cuda", "oracle", "patch_once_a_launch", "rank_threads"]
