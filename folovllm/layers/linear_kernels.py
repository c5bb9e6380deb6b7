"""How a matrix product with a fixed weight is carried out: one strategy per kind of CPU, and linear layers that use it.

A decode step multiplies every weight matrix by a handful of rows, so its time is the time to *read* the weights.
`F.linear` keeps the checkpoint's row-major layout, which the CPU's product kernels do not read at full speed. The
other kernels reorder ("prepack") each weight once after loading into the layout that their inner loop wants:

    compiled   our own panels (csrc/linear.cpp)   where there is a C++ compiler
    onednn     oneDNN's blocked layout            float32 on any x86 CPU, bfloat16 where the CPU has bf16 units
    fbgemm     FBGEMM's fp16 panels               bfloat16 weights on CPUs *without* bf16 units
    native     F.linear                           any device, any dtype; what CUDA uses

FBGEMM holds float16 and multiplies in float32. A bfloat16 value is exactly a float16 value while its magnitude lies
in [2^-14, 65504], because float16 has the longer mantissa; below that it is off by at most 2^-25. A weight outside
the range keeps the native kernel.

vLLM: model_executor/layers/utils.py (dispatch_cpu_unquantized_gemm)
"""

from __future__ import annotations

import platform
import warnings
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from folovllm.layers.embedding import LMHead
from folovllm.layers.kernels import cpu
from folovllm.layers.linear import Linear
from folovllm.utils import cpu_kernels
from folovllm.utils.devices import cpu_has_bf16_units

FP16_MAX = 65504.0
# FBGEMM packs from float32, so a vocabulary-sized weight in one piece would need a temporary copy twice its own size:
# such a weight is packed, and multiplied, in slabs (4,096 rows of 1,024 are 16 MiB). A layer's weights are not.
MAX_UNSLICED_ROWS = 16_384
SLAB_ROWS = 4_096


class LinearKernel(Protocol):
    """A way to compute `x @ weight.T + bias` for a weight that does not change."""

    name: str

    def unavailable_reason(self, weight: torch.Tensor) -> str | None:
        """Why this kernel cannot take `weight` here, or None if it can."""

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        """Reorder `weight` [out, in] into the kernel's own form, which only apply() can read."""

    def apply(self, x: torch.Tensor, packed: Any) -> torch.Tensor:
        """`x` [num_tokens, in] -> [num_tokens, out], in x's dtype."""


class NativeKernel:
    name = "native"

    def unavailable_reason(self, weight: torch.Tensor) -> str | None:
        return None

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        return weight, bias

    def apply(self, x: torch.Tensor, packed: Any) -> torch.Tensor:
        weight, bias = packed
        return F.linear(x.to(weight.dtype), weight, bias).to(x.dtype)


class CompiledKernel:
    """Reads a weight once, at the speed of memory, for up to a dozen rows; with hundreds it is as fast as oneDNN.

    It computes in float32. Where the CPU can do that, two bfloat16 numbers are multiplied at a time, or with AMX tiles
    of them.
    """

    name = "compiled"

    def unavailable_reason(self, weight: torch.Tensor) -> str | None:
        if weight.device.type != "cpu":
            return "runs on CPU only"
        if weight.dtype not in (torch.float32, torch.bfloat16):
            return "for float32 and bfloat16"
        if (reason := cpu_kernels.unavailable_reason()) is not None:
            return reason
        if weight.dtype == torch.bfloat16 and cpu_has_bf16_units() and not self._in_pairs(weight):
            return "the CPU has bf16 units: oneDNN is faster"
        return None

    @staticmethod
    def _in_pairs(weight: torch.Tensor) -> bool:
        """Not where the CPU is to pass for one without units, nor with AMX that cannot be used: oneDNN may know how."""
        if weight.dtype != torch.bfloat16 or not cpu_has_bf16_units():
            return False
        return cpu.has_tiles() or (cpu.has_bf16_pairs() and not cpu_kernels.has_amx())

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        packed = cpu.pack(weight.detach(), pairs=self._in_pairs(weight))
        return packed, None if bias is None else bias.detach().float(), len(weight)

    def apply(self, x: torch.Tensor, packed: Any) -> torch.Tensor:
        weight = packed[0]
        dtype = torch.bfloat16 if weight.shape[3] == 2 else torch.float32
        return cpu.linear(x.to(dtype).contiguous(), *packed).to(x.dtype)


class OneDnnKernel:
    """Private operators of torch, the same ones torch.compile emits for a frozen linear layer on CPU."""

    name = "onednn"

    def unavailable_reason(self, weight: torch.Tensor) -> str | None:
        if weight.device.type != "cpu":
            return "runs on CPU only"
        if platform.machine() not in ("x86_64", "AMD64"):
            return "packs for x86 CPUs"
        if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            return "this build of torch has no oneDNN prepacking"
        if weight.dtype == torch.float32:
            return None
        if weight.dtype == torch.bfloat16 and cpu_has_bf16_units():
            # FOLOVLLM_CPU_BF16 may claim units that the CPU lacks. oneDNN can emulate them with AVX-512, not without.
            return None if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "oneDNN has no bfloat16 on this CPU"
        return "for float32, and for bfloat16 on a CPU with bf16 units"

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        # The hint is a batch size: the blocked layout chosen for 8 rows is also the fastest one measured for 1.
        return torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), 8), bias

    def apply(self, x: torch.Tensor, packed: Any) -> torch.Tensor:
        weight, bias = packed
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class FbgemmKernel:
    name = "fbgemm"

    def unavailable_reason(self, weight: torch.Tensor) -> str | None:
        if weight.device.type != "cpu":
            return "runs on CPU only"
        has_operator = hasattr(torch.ops.quantized, "linear_prepack_fp16")
        if not has_operator or "fbgemm" not in torch.backends.quantized.supported_engines:
            return "this build of torch has no FBGEMM"
        if weight.dtype != torch.bfloat16:
            return "for bfloat16 weights"
        if cpu_has_bf16_units():
            return "the CPU has bf16 units: oneDNN is faster"
        return None if fits_float16(weight) else "the weight has an entry outside float16's range"

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        rows = SLAB_ROWS if len(weight) > MAX_UNSLICED_ROWS else max(1, len(weight))
        slabs = weight.detach().split(rows)
        biases = bias.detach().float().split(rows) if bias is not None else [None] * len(slabs)
        prepack = torch.ops.quantized.linear_prepack_fp16
        with warnings.catch_warnings():
            # torch announces the end of its eager quantization, of which this operator is part.
            warnings.simplefilter("ignore")
            return [prepack(w.float(), b) for w, b in zip(slabs, biases, strict=True)]

    def apply(self, x: torch.Tensor, packed: Any) -> torch.Tensor:
        x32 = x.float()
        parts = [torch.ops.quantized.linear_dynamic_fp16(x32, slab) for slab in packed]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)).to(x.dtype)


def fits_float16(weight: torch.Tensor) -> bool:
    """Whether every entry is finite and at most 65,504 in size. NaN fails every comparison, so it does not fit."""
    return weight.numel() == 0 or all(bool(bound.abs() <= FP16_MAX) for bound in torch.aminmax(weight))


# In order of preference.
KERNELS: tuple[LinearKernel, ...] = (CompiledKernel(), OneDnnKernel(), FbgemmKernel(), NativeKernel())


def select_linear_kernel(weight: torch.Tensor) -> LinearKernel:
    """The fastest kernel that can take this weight on this machine; the native one can always."""
    return next(kernel for kernel in KERNELS if kernel.unavailable_reason(weight) is None)


class PackedLinear(Linear):
    """A linear layer that keeps its weight in the layout of `kernel`, and no other copy of it."""

    kernel: LinearKernel
    packed: Any

    def pack(self, *, keep_weight: bool = False) -> None:
        """Hand the loaded weight to the fastest kernel here and drop the original, so that only one copy remains.

        keep_weight: an embedding reads the same tensor, so it stays.
        """
        self.kernel = select_linear_kernel(self.weight)
        self.packed = self.kernel.pack(self.weight, self.bias)
        if not keep_weight and not isinstance(self.kernel, NativeKernel):
            # An empty tensor takes its place: dtype and device stay readable, and the memory is free.
            self.weight.data = self.weight.data.new_empty(0, self.in_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel.apply(x, self.packed)


class PackedLMHead(PackedLinear, LMHead):
    def pack(self, *, keep_weight: bool = False) -> None:
        super().pack(keep_weight=keep_weight or self.tied)
