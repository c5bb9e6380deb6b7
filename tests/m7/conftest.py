"""The stand-in for a GPU, and dots of Triton's interpreter that add up in one order."""

from tests.m4.conftest import fake_cuda, patch_once_a_launch
from tests.m6.conftest import fixed_order

__all__ = ["fake_cuda", "fixed_order", "patch_once_a_launch"]
