"""Triton where it is installed, else a stand-in, so that a file of kernels can be imported anywhere.

A file of kernels begins with `from folovllm.utils.triton_import import tl, triton`; code that launches a kernel asks
first whether it can run. Import this when a kernel is wanted, not before: Triton takes half a second.

vLLM: triton_utils/importing.py
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _NoTriton:
    """Has the one thing that a file of kernels uses when it is imported: the decorator."""

    @staticmethod
    def jit(function: Any) -> Any:
        return function


def _load(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        return _NoTriton()


triton, tl = _load("triton"), _load("triton.language")
