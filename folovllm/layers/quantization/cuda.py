"""Products with quantised weights on a GPU, chosen by a layer's scheme when the model is built.

                    weight                     input            product
    4 or 8 bits     codes, scale and offset    as it is         kernels/linear_codes.py
    w8a8            int8, scale per output     int8 per token   torch._int_mm
    fp8 in blocks   e4m3, scale per block      as it is         kernels/linear_codes.py
    fp8             e4m3, scale per output     as it is         the same, for few rows
                                               e4m3 per token   torch._scaled_mm, for more than FEW_ROWS
    of experts      as above                   as it is         experts.py, for all of a layer's

With 8 bits on both sides the sums are torch's, and only the rounding of the input is a kernel of ours. Sums of int8 are
whole numbers and exact, so a row's bits do not depend on its batch. Those of e4m3 are float32, in an order that a
library chooses by the number of rows. And a row that is rounded in a large batch is not in a small one: its tokens may
be others. Where they must not be, in float32 and with batch_invariant=True, no input is rounded (rounds_inputs).

vLLM: model_executor/layers/quantization/fp8.py, model_executor/kernels/linear/
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from folovllm.errors import ModelLoadError
from folovllm.layers.linear import PLAIN, Linear, LinearMethod
from folovllm.layers.moe import block_of
from folovllm.layers.quantization.codes import FP8, Codes, round_to_e4m3
from folovllm.layers.quantization.linear import DequantizedLinear, QuantizedLinear
from folovllm.layers.quantization.plan import MOST_ROWS
from folovllm.model_loader.quant_scheme import QuantScheme
from folovllm.utils.gpus import gpu_of

FEWEST_ROWS = 17  # that torch._int_mm takes on a GPU
FEW_ROWS = 64
"""One tile of the kernel. It reads half of bfloat16's bytes, and does not wait for a kernel that rounds. With more rows
it takes the codes apart again for each tile, and matrix units of 8 bits are faster."""


def rounds_inputs(dtype: torch.dtype, device: torch.device, *, invariant: bool) -> bool:
    """Whether quantization='fp8' rounds the inputs of many rows, too: a GPU must multiply such numbers."""
    gpu = gpu_of(device)
    return dtype != torch.float32 and not invariant and gpu.vendor == "nvidia" and gpu.capability >= (8, 9)


def gpu_method(scheme: QuantScheme, name: str, *, invariant: bool, plain: LinearMethod = PLAIN) -> QuantizedLinear:
    """What multiplies with a layer's weight on a GPU with Triton; `plain`, where no kernel reads its codes."""
    if scheme.bits == 4 and scheme.activation_bits is not None:
        raise ValueError(
            f"{name} has weights of 4 bits and inputs of 8 (w4a8), which a CPU computes: give device='cpu', or "
            "quantization='w4a16' where the checkpoint is not quantised"
        )
    if scheme.blocks and not scheme.symmetric:  # a minimum, where the kernel's zeros are whole numbers
        return DequantizedLinear(scheme, name, plain=plain)
    if scheme.activation_bits is None or block_of(name) == "experts":
        return TritonCodesLinear(scheme, name, invariant=invariant)
    return Fp8Linear(scheme, name) if scheme.type == "float" else Int8Linear(scheme, name)


def plain_method(scheme: QuantScheme, name: str) -> QuantizedLinear:
    """What means the same in plain torch."""
    rounds_numbers = scheme.type == "float" and scheme.activation_bits is not None
    return PlainFp8Linear(scheme, name) if rounds_numbers else QuantizedLinear(scheme, name)


class TritonCodesLinear(QuantizedLinear):
    """Keeps the codes, in the words that the kernel reads."""

    by_outputs = False

    def __init__(self, scheme: QuantScheme, name: str, *, invariant: bool = False) -> None:
        super().__init__(scheme, name)
        self.invariant = invariant

    def keep(self, layer: Linear, codes: Codes) -> None:
        from folovllm.layers.quantization.kernels.linear_codes import kernel_group, pack_codes

        group, device = kernel_group(codes), codes.values.device
        if group == 16 and self.scheme.bits == 4 and device.type == "cuda" and not multiplies_16_columns(device):
            raise ModelLoadError(
                f"{self.name} has codes of 4 bits in groups of {codes.group_size}, with which this GPU's kernel would "
                "be wrong, and those of compute capability 9 and 10 are right: give device='cpu'"
            )
        if not group:
            raise ModelLoadError(
                f"{self.name} has {codes.values.shape[1]} inputs in groups of {codes.group_size}: the GPU's kernel "
                "takes groups that are a multiple of 16; device='cpu' computes with them"
            )
        self.packed = pack_codes(codes, self.scheme.bits, by_outputs=self.by_outputs)
        layer.weight = nn.Parameter(self.packed.words, requires_grad=False)
        few_and_many = () if block_of(self.name) == "experts" else (1, *(most + 1 for most in MOST_ROWS))
        for rows in few_and_many:  # each kernel is compiled before a request needs it
            self.apply(layer, torch.zeros(rows, layer.in_features, dtype=self.dtype, device=layer.weight.device))

    def apply(self, layer: Linear, x: torch.Tensor, **around: Any) -> torch.Tensor:
        """around: linear_codes()'s, for up to FEW_ROWS rows."""
        from folovllm.layers.quantization.kernels.linear_codes import linear_codes

        return linear_codes(x, self.packed, layer.bias, invariant=self.invariant, **around)


class Int8Linear(QuantizedLinear):
    def keep(self, layer: Linear, codes: Codes) -> None:
        outs, size = codes.values.shape
        if outs % 8 or size % 8:
            raise ModelLoadError(
                f"{self.name} has {size} inputs and {outs} outputs: on a GPU, products with 8 bits on both sides take "
                "multiples of 8; give quantization='w4a16', or device='cpu'"
            )
        layer.weight = nn.Parameter(codes.values, requires_grad=False)
        self.scale = codes.scale.T.contiguous()

    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        from folovllm.layers.quantization.kernels.round_rows import round_rows

        codes, scale = round_rows(x, torch.int8, least_rows=FEWEST_ROWS)
        sums = torch._int_mm(codes, layer.weight.T)[: len(x)]
        out = torch.mul(sums * self.scale, scale, out=torch.empty(sums.shape, dtype=x.dtype, device=x.device))
        return out if layer.bias is None else out + layer.bias


class PlainFp8Linear(QuantizedLinear):
    """The weight that the numbers of 8 bits mean, many rows that are rounded as they are, and Fp8Linear's result."""

    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        if len(x) <= FEW_ROWS:
            return F.linear(x, layer.weight, layer.bias)
        numbers, scale = round_to_e4m3(x)
        out = F.linear((numbers.float() * scale).to(x.dtype), layer.weight).to(torch.bfloat16).to(x.dtype)
        return out if layer.bias is None else out + layer.bias


class Fp8Linear(TritonCodesLinear):
    """Few rows are multiplied as they are. Of many, the result is rounded to bfloat16, whatever the model's dtype:
    torch scales by row and column in no other."""

    by_outputs = True  # torch's product reads the same words, an output after the other

    def keep(self, layer: Linear, codes: Codes) -> None:
        if len(codes.values) % 16:
            raise ModelLoadError(
                f"{self.name} has {len(codes.values)} outputs: on a GPU, products with e4m3 on both sides take "
                "multiples of 16; give quantization='w4a16', or dtype='float32'"
            )
        self.one = None if scales_rows(codes.values.device) else torch.ones((), device=codes.values.device)
        super().keep(layer, codes)

    def apply(self, layer: Linear, x: torch.Tensor, **around: Any) -> torch.Tensor:
        from folovllm.layers.quantization.kernels.linear_codes import linear_codes
        from folovllm.layers.quantization.kernels.round_rows import round_rows

        if len(x) <= FEW_ROWS:
            return linear_codes(x, self.packed, layer.bias, **around)
        weight, one, scales = layer.weight.transpose(0, 1).flatten(1).view(FP8).T, self.one, self.packed.scale[:1]
        numbers, scale = round_rows(x, FP8, in_lines=True)
        if one is None:
            out = torch._scaled_mm(numbers, weight, scale_a=scale, scale_b=scales, out_dtype=torch.bfloat16)
        else:  # the same scales behind the product
            sums = torch._scaled_mm(numbers, weight, scale_a=one, scale_b=one, out_dtype=torch.float32)
            out = (sums * scales * scale).to(torch.bfloat16)
        out = out.to(x.dtype)
        return out if layer.bias is None else out + layer.bias


def multiplies_16_columns(device: torch.device) -> bool:
    """Elsewhere what Triton compiles counts the 16 columns of such a product twice, where they come from codes."""
    return torch.cuda.get_device_capability(device)[0] in (9, 10)


def scales_rows(device: torch.device) -> bool:
    """Whether torch._scaled_mm takes a scale for each row and column there. On compute capability 12.0 some versions of
    torch take one for a whole matrix, and no other."""
    numbers, scale = torch.zeros(16, 16, dtype=FP8, device=device), torch.ones(16, 1, device=device)
    try:
        torch._scaled_mm(numbers, numbers.T, scale_a=scale, scale_b=scale.T, out_dtype=torch.bfloat16)
    except RuntimeError:
        return False
    return True
