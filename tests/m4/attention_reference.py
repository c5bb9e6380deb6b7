"""M3's cases of attention, whose metadata tell a kernel how many sequences in front have one query each."""

from __future__ import annotations

from typing import Any

import torch

from folovllm.attention.backend import AttentionBackend
from tests.m3 import attention_reference as plain
from tests.m3.attention_reference import BATCHES, SHAPES, TOLERANCE, Case, Shape, Spans, reference

__all__ = ["BATCHES", "KERNEL_DEVICE", "SHAPES", "TOLERANCE", "Case", "Shape", "Spans", "make_case", "reference"]

KERNEL_DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Where tests run kernels: without a GPU, in Triton's interpreter."""


def make_case(
    backend: type[AttentionBackend], spans: Spans, shape: Shape = SHAPES[0], *, say_decodes: bool = True, **more: Any
) -> Case:
    """say_decodes: whether the metadata tells how many decodes there are in front."""
    case = plain.make_case(backend, spans, shape, **more)
    if say_decodes:
        case.metadata.num_decodes = min([i for i, (new, _) in enumerate(spans) if new != 1] + [len(spans)])
    return case
