"""Kernels as they are compiled for an H200 compute what they should. No GPU is needed: see tests/m11/cuda/ptx."""

from __future__ import annotations

import pytest

from tests.m4.compiling import compiled_by, needs_assembler

pytest.importorskip("triton")
pytestmark = [pytest.mark.exhaustive, needs_assembler]  # a minute of a CPU


@pytest.mark.parametrize(("words", "least"), [((), 50), (("amd",), 20)], ids=["", "amd"])
def test_results_are_those_of_float64_but_for_what_the_dtype_rounds(
    words: tuple[str, ...], least: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Products, attention over caches of 16 and of 8 bits, codes, experts, and what may be drawn; with programs and
    warps in any order, copies that come as late as they may, and nothing read before its kernel's turn. amd: the parts
    of kernels that AMD's compiler gets, by NVIDIA's."""
    found = compiled_by("tests.m11.cuda.compiled_results", tmp_path_factory.mktemp("triton"), *words)
    limits = {"float32": 1e-6, "torch.float16": 5e-4, "store": 0.0, "round": 0.0, "kept": 0.0, "argmax": 0.0,
              "drawn": 0.0}  # fmt: skip
    wrong = {
        name: off for name, off in found.items() if not off <= next((limits[k] for k in limits if k in name), 4e-3)
    }
    assert len(found) >= least
    assert wrong == {}
