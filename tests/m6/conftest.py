"""Fixtures of M6's tests: random models, as in M3's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.m1.support import make_text_model
from tests.m3.conftest import oracle  # noqa: F401
from tests.m4.conftest import fake_cuda, patch_once_a_launch, small_oracle  # noqa: F401
from tests.m5.conftest import beam_oracle  # noqa: F401


@pytest.fixture(scope="session")
def text_model_folder(tmp_path_factory):
    """With a byte-level tokenizer and an EOS."""
    return make_text_model(tmp_path_factory.mktemp("model"), max_position_embeddings=256)


@pytest.fixture
def fixed_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter multiplies tiles with numpy, and numpy with a BLAS: some sum a row in an order that depends
    on its place in the tile, as a GPU's tensor cores do not. Here each number of a tile's product is one chain."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")

    def create_dot(builder: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        product = np.einsum("ik,kj->ij", a.data, b.data, dtype=d.data.dtype)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
