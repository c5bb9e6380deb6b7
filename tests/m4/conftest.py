"""Fixtures of M4's tests of the engine: random models, as in M3's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.fake_cuda import FakeCuda, fake_cuda_machine
from tests.m3.conftest import oracle, text_model_folder  # noqa: F401
from tests.m3.oracle import Oracle


@pytest.fixture(scope="session", autouse=True)
def patch_once_a_launch() -> Iterator[None]:
    """Triton's interpreter puts functions of its own in the place of the language's when a kernel is launched, and
    looks for more of them, among all names, whenever the kernel calls a function: a third of its time. And it sorts by
    adding up numbers in Python, one by one, 1.4 s for 1,024 of them: here NumPy sorts."""
    try:
        from triton.runtime import interpreter

        scope = interpreter._LangPatchScope
    except (ImportError, AttributeError):  # without Triton, or with one that does it in another way
        yield
        return
    language = interpreter.tl
    patch, restore = interpreter._patch_lang, scope.restore
    patched: set[int] = set()

    def patch_lang(function: Callable[..., Any]) -> Any:
        seen = {id(value) for value in function.__globals__.values() if value is language or value is language.core}
        if seen <= patched:
            return scope()
        patched.update(seen)
        return patch(function)

    def restore_all(self: Any) -> None:
        patched.clear()
        restore(self)

    def sort(x: Any, *, descending: bool) -> Any:
        assert descending
        handle = interpreter.TensorHandle(np.sort(x.handle.data)[::-1].copy(), x.handle.dtype)
        return language.tensor(handle, x.type)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(interpreter, "_patch_lang", patch_lang)
        monkeypatch.setattr(scope, "restore", restore_all)
        if not torch.cuda.is_available():
            monkeypatch.setattr(language, "sort", sort)
        yield


@pytest.fixture(scope="session")
def small_oracle(tmp_path_factory) -> Oracle:
    """With one KV head: Triton's interpreter takes milliseconds for each program of a kernel."""
    return Oracle(tmp_path_factory.mktemp("small"), num_attention_heads=2, num_key_value_heads=1)


@pytest.fixture
def fake_cuda() -> Iterator[FakeCuda]:
    """Two small GPUs that are none: see tests/fake_cuda. Their numbers are right, Triton's kernels are interpreted."""
    with fake_cuda_machine(total_bytes=2 << 30, num_devices=2) as machine:
        yield machine
