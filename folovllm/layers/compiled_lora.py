"""Adapters in our own compiled CPU kernels. A step's one call adds them behind each product (csrc/decoder.cpp); here is
the same for layers that run one by one. Sums are float32, whatever x is, and pairs are kept in the model's dtype.

vLLM: none; on a CPU its adapters are torch's (lora/punica_wrapper/punica_cpu.py)
"""

from __future__ import annotations

from ctypes import Structure

import torch

from folovllm.layers.compiled_ops import linear, pack
from folovllm.layers.lora import LoRAWeights
from folovllm.lora.mapping import LoRAMapping
from folovllm.utils.cpu_kernels import INT, POINTER


class Adapter(Structure):
    """As csrc/kernels.h declares it."""

    _fields_ = [("a", POINTER), ("b", POINTER), ("rank", INT), ("is_bfloat16", INT)]


class CompiledLoRAWeights(LoRAWeights):
    """Pairs in panels, each as large as it is."""

    def __init__(
        self, num_slots: int, rank: int, inputs: int, outputs: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.dtype, self.outputs = dtype, outputs
        self.pairs: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * num_slots
        self.table = (Adapter * num_slots)()

    def put(self, slot: int, a: torch.Tensor, b: torch.Tensor) -> None:
        self.pairs[slot] = pair = (pack(a.to(self.dtype)), pack(b.to(self.dtype))) if len(a) else None
        of_bf16 = self.dtype == torch.bfloat16
        self.table[slot] = Adapter(*(each.data_ptr() for each in pair), len(a), of_bf16) if pair else Adapter()

    def add(self, x: torch.Tensor, mapping: LoRAMapping, out: torch.Tensor) -> None:
        for slot, rows in mapping.spans:
            if (pair := self.pairs[slot]) is not None:
                low = linear(x[rows].float(), pair[0], None, self.table[slot].rank)
                out[rows] = (out[rows].float() + linear(low, pair[1], None, self.outputs)).to(out.dtype)
