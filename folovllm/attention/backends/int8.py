"""The paged cache in int8: codes, and a scale for each token and head, on a CPU and in our own Triton kernels.

    block of a head     codes [block_size, head_size] int8 | scales [block_size] float32          number = code * scale
    a layer's cache     [2, num_blocks, num_kv_heads, such a block]

A scale is a head's largest number / 127. It is in the block of its codes, so one copy still moves a block: swapping,
copy-on-write and prefix caching know nothing of it. A token and head take head_size + 4 bytes in place of
2 * head_size in bfloat16: 132 of 256 with heads of 128.

Nothing is converted in memory. A query's products are of codes, which bfloat16 and float32 hold exactly. Then a score
is multiplied by its key's scale, and a weight of the softmax by its value's.

    CPU     csrc/attention.cpp, csrc/prefill.cpp; PagedInt8Backend where these cannot run
    CUDA    store_kv_int8; paged_decode and paged_prefill

vLLM: v1/attention/backends/triton_attn.py (kv_cache_dtype="int8_per_token_head")
"""

from __future__ import annotations

import torch

from folovllm.attention.backends.cpu import CPUBackend
from folovllm.attention.backends.fp8 import PagedFp8Backend
from folovllm.attention.backends.invariant import CPUInvariantBackend, TritonInvariantBackend
from folovllm.attention.backends.triton import TritonBackend
from folovllm.attention.metadata import AttentionMetadata

LARGEST = 127.0
SCALE_BYTES = 4


def round_heads(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes int8, scales float32) of x [..., head_size], the nearest code of each number, ties to even. The scale,
    [...], is NaN where a number is not finite, so that a request whose numbers broke is found."""
    scale = x.float().abs().amax(-1) / LARGEST
    divisor = scale.where(scale > 0, 1.0).unsqueeze(-1)
    codes = (x.float() / divisor).round().clamp(-LARGEST, LARGEST)
    return codes.nan_to_num(0.0).to(torch.int8), scale + scale * 0


def codes_of(kv_cache: torch.Tensor) -> torch.Tensor:
    """[2, num_blocks, block_size, num_kv_heads, head_size], a view of a cache of kv_cache_shape()."""
    _, num_blocks, block_size, num_kv_heads, row = kv_cache.shape
    run, size = block_size * row, row - SCALE_BYTES
    strides = (num_blocks * num_kv_heads * run, num_kv_heads * run, size, run, 1)
    return kv_cache.as_strided((2, num_blocks, block_size, num_kv_heads, size), strides)


def scales_of(kv_cache: torch.Tensor) -> torch.Tensor:
    """[2, num_blocks, block_size, num_kv_heads] float32, a view as codes_of() is."""
    _, num_blocks, block_size, num_kv_heads, row = kv_cache.shape
    runs = kv_cache.view(2, num_blocks, num_kv_heads, block_size * row)
    return runs[..., block_size * (row - SCALE_BYTES) :].view(torch.float32).transpose(2, 3)


class PagedInt8Backend(PagedFp8Backend):
    """In torch's operators: what the kernels are compared with."""

    name = "paged_int8"

    def kv_cache_shape(self, num_blocks: int, block_size: int) -> tuple[int, ...]:
        """The last dimension counts bytes, and not their layout: see codes_of() and scales_of().

        Raises:
            ValueError: a scale would not begin at a multiple of its 4 bytes.
        """
        if block_size * self.head_size % SCALE_BYTES:
            raise ValueError(
                f"block_size must be a multiple of 4 for kv_cache_dtype 'int8' with heads of {self.head_size}, got "
                f"{block_size}"
            )
        return (2, num_blocks, block_size, self.num_kv_heads, self.head_size + SCALE_BYTES)

    def write(self, k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        block_size = kv_cache.shape[2]
        place = slot_mapping // block_size, slot_mapping % block_size
        for part, x in enumerate((k, v)):
            codes, scales = round_heads(x)
            codes_of(kv_cache)[part].index_put_(place, codes)
            scales_of(kv_cache)[part].index_put_(place, scales)

    def numbers(self, blocks: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return (codes_of(blocks) * scales_of(blocks).unsqueeze(-1)).to(dtype)


class CPUInt8Backend(CPUBackend, PagedInt8Backend):
    name = "cpu_int8"
    dtypes = ((torch.float32, torch.int8), (torch.bfloat16, torch.int8))


class CPUInvariantInt8Backend(CPUInvariantBackend, CPUInt8Backend):
    name = "cpu_invariant_int8"


class TritonInt8Backend(TritonBackend):
    name = "triton_int8"
    stores_as_is = False
    kv_cache_shape = PagedInt8Backend.kv_cache_shape

    def write(self, k: torch.Tensor, v: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        from folovllm.attention.kernels.store_kv_int8 import store_kv_int8

        keys, values = self._codes(kv_cache).unbind(0)
        store_kv_int8(k, v, keys, values, slot_mapping)

    def warm_up(self, kv_cache: torch.Tensor, dtype: torch.dtype | None = None) -> None:
        super().warm_up(self._codes(kv_cache), dtype)

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata) -> torch.Tensor:
        return super().forward(q, self._codes(kv_cache), metadata)

    def _codes(self, kv_cache: torch.Tensor) -> torch.Tensor:
        """What the kernels take, which find the scales behind the codes. warm_up() hands these on to the others."""
        return kv_cache if kv_cache.shape[-1] == self.head_size else codes_of(kv_cache)


class TritonInvariantInt8Backend(TritonInt8Backend, TritonInvariantBackend):
    name = "triton_invariant_int8"
