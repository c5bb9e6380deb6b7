"""Products with quantised weights on a GPU, chosen by a layer's scheme when the model is built.

                   weight                     input            product
    4 or 8 bits    codes, scale and offset    as it is         kernels/linear_codes.py
    w8a8           int8, scale per output     int8 per token   torch._int_mm
    fp8            e4m3, scale per output     e4m3 per token   torch._scaled_mm

With 8 bits on both sides the sums are torch's, and only the rounding of the input is a kernel of ours. Sums of int8 are
whole numbers and exact, so a row's bits do not depend on its batch. Those of e4m3 are float32, in an order that a
library chooses by the number of rows.

vLLM: model_executor/layers/quantization/fp8.py, model_executor/kernels/linear/
"""

from __future__ import annotations

import torch
from torch import nn

from folovllm.errors import ModelLoadError
from folovllm.layers.linear import Linear
from folovllm.layers.quantization.codes import Codes
from folovllm.layers.quantization.linear import QuantizedLinear
from folovllm.layers.quantization.plan import MOST_ROWS
from folovllm.model_loader.quant_scheme import QuantScheme

FP8, LARGEST = torch.float8_e4m3fn, 448.0
FEWEST_ROWS = 17  # that torch._int_mm takes on a GPU


def check_fp8(scheme: QuantScheme, device: torch.device, *, has_triton: bool, invariant: bool) -> None:
    """Raises ValueError where fp8 cannot be computed, or not with batch_invariant=True."""
    if scheme.type != "float":
        return
    if not has_triton or torch.cuda.get_device_capability(device) < (8, 9):
        raise ValueError(
            f"quantization 'fp8' cannot be computed on {device}: it needs Triton and a GPU of compute capability "
            f"8.9 or above; give 'w8a8' or 'w4a16'"
        )
    if invariant:
        raise ValueError(
            "quantization 'fp8' cannot keep batch_invariant=True: its products are summed as a library likes; "
            "give 'w8a8' or 'w4a16', or leave batch_invariant out"
        )


def gpu_method(scheme: QuantScheme, name: str, *, invariant: bool) -> QuantizedLinear:
    """What multiplies with a layer's weight on a GPU with Triton."""
    if scheme.bits == 4 and scheme.activation_bits is not None:
        raise ValueError(
            f"{name} has weights of 4 bits and inputs of 8 (w4a8), which a CPU computes: give device='cpu', or "
            "quantization='w4a16' where the checkpoint is not quantised"
        )
    if scheme.activation_bits is None:
        return TritonCodesLinear(scheme, name, invariant=invariant)
    return Fp8Linear(scheme, name) if scheme.type == "float" else Int8Linear(scheme, name)


class TritonCodesLinear(QuantizedLinear):
    """Keeps the codes, in the words that the kernel reads."""

    def __init__(self, scheme: QuantScheme, name: str, *, invariant: bool = False) -> None:
        super().__init__(scheme, name)
        self.invariant = invariant

    def keep(self, layer: Linear, codes: Codes) -> None:
        from folovllm.layers.quantization.kernels.linear_codes import kernel_group, pack_codes

        if not kernel_group(codes):
            raise ModelLoadError(
                f"{self.name} has {codes.values.shape[1]} inputs in groups of {codes.group_size}: the GPU's kernel "
                "takes groups that are a multiple of 16; device='cpu' computes with them"
            )
        self.packed = pack_codes(codes, self.scheme.bits)
        layer.weight = nn.Parameter(self.packed.words, requires_grad=False)
        for rows in (1, *(most + 1 for most in MOST_ROWS)):  # each kernel is compiled before a request needs it
            self.apply(layer, torch.zeros(rows, layer.in_features, dtype=self.dtype, device=layer.weight.device))

    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        from folovllm.layers.quantization.kernels.linear_codes import linear_codes

        return linear_codes(x, self.packed, layer.bias, invariant=self.invariant)


class Int8Linear(QuantizedLinear):
    def keep(self, layer: Linear, codes: Codes) -> None:
        _check_multiple(self.name, codes.values, 8)
        layer.weight = nn.Parameter(codes.values, requires_grad=False)
        self.scale = codes.scale.T.contiguous()

    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        from folovllm.layers.quantization.kernels.round_rows import round_rows

        codes, scale = round_rows(x, torch.int8, least_rows=FEWEST_ROWS)
        sums = torch._int_mm(codes, layer.weight.T)[: len(x)]
        out = torch.mul(sums * self.scale, scale, out=torch.empty(sums.shape, dtype=x.dtype, device=x.device))
        return out if layer.bias is None else out + layer.bias


class Fp8Linear(QuantizedLinear):
    """Its result is rounded to bfloat16, whatever the model's dtype: torch scales by row and column in no other."""

    def process_weights_after_loading(self, layer: Linear) -> None:
        _check_multiple(self.name, layer.weight, 16)
        numbers, scale = round_to_e4m3(layer.weight.detach())
        layer.weight, self.scale = nn.Parameter(numbers, requires_grad=False), scale.T.contiguous()

    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        from folovllm.layers.quantization.kernels.round_rows import round_rows

        numbers, scale = round_rows(x, FP8)
        out = torch._scaled_mm(
            numbers, layer.weight.T, scale_a=scale, scale_b=self.scale, out_dtype=torch.bfloat16
        ).to(x.dtype)  # fmt: skip
        return out if layer.bias is None else out + layer.bias


def round_to_e4m3(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row of x [num_rows, size]: (its numbers in e4m3, its scale [num_rows, 1] float32)."""
    x = x.float()
    scale = x.abs().amax(1, keepdim=True) / LARGEST
    return (x / scale.where(scale > 0, 1.0)).to(FP8), scale


def _check_multiple(name: str, weight: torch.Tensor, step: int) -> None:
    outs, size = weight.shape
    if outs % step or size % step:
        raise ModelLoadError(
            f"{name} has {size} inputs and {outs} outputs: on a GPU, products with 8 bits on both sides take multiples "
            f"of {step}; give quantization='w4a16', or device='cpu'"
        )
