"""The two attention kernels, small enough for compute-sanitizer: does a thread read shared memory that another writes?

    compute-sanitizer --tool racecheck python -m pytest tests/gpu/test_races_gpu.py

Triton puts the barriers between the threads of a program, and a pipeline that loads tiles ahead is where one may be
missing. Results are held against float64 as well: a tool that saw no kernel run would find no race either.
"""

from __future__ import annotations

import pytest
import torch

from folovllm.attention.backends.triton import TritonBackend
from tests.gpu.places import Place, on_every_place
from tests.m4.attention_reference import Shape, Spans, make_case

# New tokens and older ones of each sequence. Few and long: their decodes are split. Several tiles in each.
CASES: dict[str, tuple[Spans, Spans]] = {
    "decode": ([(1, 699), (1, 64), (1, 15)], [(1, 39), (1, 2)]),
    "prefill": ([(130, 0), (40, 260)], [(9, 11)]),
    "decodes, then a chunk": ([(1, 32), (1, 199), (70, 80)], [(1, 16), (5, 4)]),
}


@on_every_place
@pytest.mark.parametrize("name", CASES)
def test_small_batches_for_the_sanitizer(place: Place, name: str) -> None:
    if (reason := TritonBackend.unavailable_reason(torch.device(place.device))) is not None:
        pytest.skip(reason)
    shape = Shape(16, 8, 128, 16, torch.bfloat16) if place.full else Shape(4, 2, 16, 16, torch.float32)
    make_case(TritonBackend, CASES[name][not place.full], shape, device=place.device).check()
