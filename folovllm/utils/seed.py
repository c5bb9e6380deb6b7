"""Seed every global random generator at once.

This is for what has no generator of its own (random weights, unseeded draws). A request's `seed` does not
go through here: it owns a generator, so that no other request can advance its state.

vLLM: vllm/utils/torch_utils.py
"""

from __future__ import annotations

import random


def set_seed(seed: int) -> None:
    """Seed Python's, numpy's and torch's global generators (torch's covers every device)."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)  # numpy's global generator takes 32 bits
    torch.manual_seed(seed)
