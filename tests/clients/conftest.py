"""The stand-in for a GPU, and a small model, for what stands around the last milestone's engine."""

from tests.m4.conftest import fake_cuda, small_oracle

__all__ = ["fake_cuda", "small_oracle"]
