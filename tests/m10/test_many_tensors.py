"""A model with experts has thousands of small tensors: what is done for each of them must cost little."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from folovllm.models import weights
from folovllm.models.weights import iterate_safetensors
from folovllm.utils import memory


@pytest.mark.parametrize(("piece", "times"), [(2**26, 1), (1000, 8)])
def test_a_file_is_opened_anew_after_so_many_bytes_and_not_for_each_tensor(
    piece: int, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {f"{number:02}": torch.full((128,), float(number)) for number in range(16)}  # of 512 bytes
    save_file(tensors, tmp_path / "model.safetensors")
    opened: list[Path] = []

    def counting(path: Path, **options: Any) -> Any:
        opened.append(path)
        return safe_open(path, framework="pt")

    since_m11 = hasattr(weights, "open_weights")  # by the kind of the file
    monkeypatch.setattr(weights, "open_weights" if since_m11 else "safe_open", counting)
    monkeypatch.setattr(weights, "PIECE", piece)
    read = dict(iterate_safetensors(tmp_path))
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)
    assert len(opened) - times in (0, 1)  # once for the names, if not in another file


def test_the_heap_is_walked_through_for_large_pieces_and_not_for_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[int] = []
    monkeypatch.setattr(memory, "_freed", 0)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(malloc_trim=trims.append))
    monkeypatch.setattr("sys.platform", "linux")
    for _ in range(640):
        memory.release_freed_memory(2**20)
    assert len(trims) == 10
    memory.release_freed_memory()
    assert len(trims) == 11
