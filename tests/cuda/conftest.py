"""Fixtures of the tests of what the root's engine does faster on a GPU: the stand-in for one, and ranks as threads."""

from __future__ import annotations

from tests.m4.conftest import fake_cuda, patch_once_a_launch  # noqa: F401
from tests.m6.conftest import fixed_order  # noqa: F401
from tests.m9.ranks_support import rank_threads  # noqa: F401
