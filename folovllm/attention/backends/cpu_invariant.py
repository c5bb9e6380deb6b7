"""Our own CPU kernel for prompts, for every query: its bits depend on its position and on what it sees alone.

csrc/prefill.cpp reads the keys of a sequence in tiles that lie at the same places whatever is asked, from the first on,
and adds them up row by row. What a longer neighbour in a block of rows sees has weight zero. So a token that is decoded
is a prompt of one query, and whether it came by a prefill, by a chunk or by a decode cannot be told. The price: a
decode turns each tile of keys for one query, and nothing divides the keys of a long sequence among threads.

vLLM: v1/attention/backends/cpu_attn.py
"""

from __future__ import annotations

import torch

from folovllm.attention.backends.cpu import CPUBackend, Lists
from folovllm.attention.metadata import AttentionMetadata


class OneList(Lists):
    decodes_apart = False


class CPUInvariantBackend(CPUBackend):
    name = "cpu_invariant"
    lists_class = OneList

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        return super().forward(q if self._suits(q, kv_cache) else q.contiguous(), kv_cache, metadata)
