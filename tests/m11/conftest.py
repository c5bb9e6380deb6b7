"""The stand-in for a GPU, and a small model."""

from tests.m4.conftest import fake_cuda, patch_once_a_launch, small_oracle

__all__ = ["fake_cuda", "patch_once_a_launch", "small_oracle"]
