"""Triton's interpreter adds up numbers in Python, one by one, when it sorts: 1.4 s for 1,024. Here NumPy sorts them."""

from __future__ import annotations

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def sort_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        def sort(x: tl.tensor, *, descending: bool) -> tl.tensor:
            assert descending
            return tl.tensor(TensorHandle(np.sort(x.handle.data)[::-1].copy(), x.handle.dtype), x.type)

        monkeypatch.setattr(tl, "sort", sort)
