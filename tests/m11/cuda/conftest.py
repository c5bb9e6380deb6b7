"""Fixtures for the root's engine on CUDA: the stand-in for a GPU, random models, ranks as threads."""

from tests.m4.conftest import fake_cuda, oracle, patch_once_a_launch, small_oracle
from tests.m6.conftest import fixed_order
from tests.m9.ranks_support import rank_threads

__all__ = ["fake_cuda", "fixed_order", "oracle", "patch_once_a_launch", "rank_threads", "small_oracle"]
