"""Which kernels are launched while the one before them ends. That they wait is seen in their machine code, by
test_kernels_compile.py and test_attention_compile.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from folovllm.utils import dependent_launch as module
from folovllm.utils.gpus import Gpu

DEPENDENT, USUAL = {"DEPENDENT": True, "launch_pdl": True}, {"DEPENDENT": False}


def arguments(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], *, vendor: str = "nvidia", interpret: bool = False
) -> dict:
    knobs = SimpleNamespace(runtime=SimpleNamespace(interpret=interpret))
    monkeypatch.setattr(module, "triton", SimpleNamespace(knobs=knobs))
    monkeypatch.setattr(module, "gpu_of", lambda device: Gpu(vendor, capability))
    return module.dependent_launch.__wrapped__(torch.device("cuda"))  # each time anew


@pytest.mark.parametrize(
    ("capability", "want"), [((8, 0), USUAL), ((8, 9), USUAL), ((9, 0), DEPENDENT), ((10, 0), USUAL), ((12, 0), USUAL)]
)
def test_on_hopper_gpus_alone(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], want: dict) -> None:
    assert arguments(monkeypatch, capability) == want


def test_neither_in_the_interpreter_nor_on_an_amd_gpu_of_the_same_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert arguments(monkeypatch, (9, 0), interpret=True) == USUAL
    assert arguments(monkeypatch, (9, 4), vendor="amd") == USUAL


def test_not_on_a_cpu() -> None:
    assert module.dependent_launch(torch.device("cpu")) == USUAL
