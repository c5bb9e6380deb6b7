"""Dense attention: every sequence's K and V are one contiguous stretch of the cache.

    kv_cache[0, block]   k0 k1 k2 k3 .. k(n-1) -- -- -- --      one block per sequence, as long as it may ever get
                         |--- read as a slice ---|-- reserved, unused --|

To PagedTorchBackend that is a table of one block, of which nothing has to be gathered. Its price is what is reserved
and never used.

vLLM: none (v1/attention/backends/cpu_attn.py is its CPU reader of a paged cache)
"""

from __future__ import annotations

from folovllm.attention.backends.paged_torch import PagedTorchBackend


class DenseBackend(PagedTorchBackend):
    name = "dense"
    reads_block_tables = False
    supports_extras = False
