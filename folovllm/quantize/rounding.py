"""The grid that a weight is rounded to, as it will be stored, and the rounding that needs no text.

A scale is stored in the checkpoint's own dtype. It is rounded to that first, and the codes are chosen for the scale
that a reader will find: codes for a better one would mean another weight.

vLLM: none; compressed-tensors' observers
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from folovllm.layers.quantization.codes import Codes, choose_grid, to_codes
from folovllm.model_loader.quant_scheme import QuantScheme


@dataclass
class Grid:
    """Which numbers each group of a weight can take."""

    scale: torch.Tensor
    """float32 [out, groups], each a number of the dtype that is stored"""
    zero: torch.Tensor
    """int8 [out, groups]; all 0 if symmetric"""
    bits: int
    symmetric: bool

    @classmethod
    def of(cls, weight: torch.Tensor, scheme: QuantScheme, stored: torch.dtype) -> Grid:
        """That of `weight` [out, in], chosen by its groups' extremes."""
        size = weight.shape[1] if scheme.group_size == -1 else scheme.group_size
        scale, zero = choose_grid(weight.unflatten(1, (-1, size)), bits=scheme.bits, symmetric=scheme.symmetric)
        scale = scale.to(stored).float()
        return cls(scale.where(scale > 0, 1.0), zero, scheme.bits, scheme.symmetric)  # 0: too small for the dtype

    def codes(self, values: torch.Tensor) -> Codes:
        """`values`: int8 [out, in], on this grid."""
        return Codes(values, self.scale, None if self.symmetric else self.zero)

    def round(self, weight: torch.Tensor) -> Codes:
        """Each weight to its nearest code."""
        grouped = weight.unflatten(1, (self.scale.shape[1], -1))
        return self.codes(to_codes(grouped, self.scale, self.zero, self.bits).flatten(1))


def output_error(change: torch.Tensor, hessian: torch.Tensor) -> torch.Tensor:
    """The mean square of what a change of the weight [out, in] changes at each output, [out].

    With H the mean of x x^T over the inputs x: mean (d x)^2 = d H d^T. No input has to be kept for it.
    """
    return ((change @ hessian) * change).sum(1)
