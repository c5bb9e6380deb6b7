"""SwiGLU's middle: silu(gate) * up (Shazeer, 2020, arXiv:2002.05202).

vLLM: model_executor/layers/activation.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """[num_tokens, 2 * intermediate], gate beside up, -> [num_tokens, intermediate]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up
