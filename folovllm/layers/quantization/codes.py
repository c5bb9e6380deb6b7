"""A weight as small integers with scales, whatever checkpoint it came from: the one form that is computed with.

    weight[o, k] = (code[o, k] - zero[o, g]) * scale[o, g]        g = k // group_size: the group that column k is in

Symmetric: zero is 0, so 0.0 is a code, and the range is the same on both sides. Asymmetric: the codes cover the group
from its smallest weight to its largest. Codes and zeros are signed: in [-8, 8) for 4 bits, in [-128, 128) for 8. A code
of 8 bits may be an e4m3 number instead, without a zero.

vLLM: model_executor/layers/quantization/utils/quant_utils.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

FP8, LARGEST = torch.float8_e4m3fn, 448.0


@dataclass
class Codes:
    values: torch.Tensor
    """int8 or float8_e4m3fn [out, in]"""
    scale: torch.Tensor
    """float32 [out, groups]"""
    zero: torch.Tensor | None
    """int8 [out, groups]; None: all are 0"""
    minimum: torch.Tensor | None = None
    """float32 [out, groups], what is added to each weight, instead of a zero: that of a GGUF file is no whole number"""

    @property
    def group_size(self) -> int:
        return self.values.shape[1] // self.scale.shape[1]

    def dequantize(self) -> torch.Tensor:
        """The weight that is meant, float32 [out, in]."""
        grouped = self.values.unflatten(1, (-1, self.group_size)).float()
        if self.zero is not None:
            grouped = grouped - self.zero[..., None]
        grouped = grouped * self.scale[..., None]
        return (grouped if self.minimum is None else grouped + self.minimum[..., None]).flatten(1)

    def in_groups(self, size: int) -> Codes:
        """The same weight, in groups of `size`, which divides its own."""
        again = self.group_size // size
        more = [None if each is None else each.repeat_interleave(again, 1) for each in (self.zero, self.minimum)]
        return Codes(self.values, self.scale.repeat_interleave(again, 1), *more)

    def offset(self) -> torch.Tensor | None:
        """float32 [out, groups], what is added to a group's scaled codes; None: nothing is."""
        return -self.scale * self.zero if self.zero is not None else self.minimum

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """x [num_tokens, in] by the weight that is meant, [num_tokens, out], in float32. As kernels do it: no weight is
        made. The codes of a group are multiplied as they are, and their sum is scaled."""
        grouped = x.float().unflatten(1, (-1, self.group_size))  # [num_tokens, groups, group_size]
        sums = torch.einsum("tgk,ogk->tog", grouped, self.values.float().unflatten(1, (-1, self.group_size)))
        if self.zero is not None:
            sums = sums - self.zero * grouped.sum(2)[:, None]  # what each code has too much, times the group's inputs
        sums = sums * self.scale
        return (sums if self.minimum is None else sums + self.minimum * grouped.sum(2)[:, None]).sum(2)


def stack(parts: list[Codes]) -> Codes:
    """Layers side by side in one: their outputs follow each other. The smallest groups divide the others."""
    size = min(part.group_size for part in parts)
    parts = [part if part.group_size == size else part.in_groups(size) for part in parts]
    minima = [torch.zeros_like(part.scale) if part.minimum is None else part.minimum for part in parts]
    zeros = [torch.zeros_like(part.scale, dtype=torch.int8) if part.zero is None else part.zero for part in parts]
    symmetric = all(part.zero is None for part in parts)
    return Codes(
        torch.cat([part.values for part in parts]),
        torch.cat([part.scale for part in parts]),
        None if symmetric else torch.cat(zeros),
        None if all(part.minimum is None for part in parts) else torch.cat(minima),
    )


def round_to_e4m3(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row of x [.., size]: (its numbers in e4m3, its scale [.., 1] float32)."""
    x = x.float()
    scale = x.abs().amax(-1, keepdim=True) / LARGEST
    return (x / scale.where(scale > 0, 1.0)).to(FP8), scale


def round_to_nearest(weight: torch.Tensor, *, bits: int, group_size: int, symmetric: bool) -> Codes:
    """`weight` [out, in] in codes, each the nearest one. group_size -1: one group for a whole row.

    The scale is chosen by the group's extremes: its largest number in size is the last code (symmetric), or its
    smallest and largest are the first and the last one (asymmetric). 0.0 has a code in either way.
    """
    grouped = weight.float().unflatten(1, (-1, weight.shape[1] if group_size == -1 else group_size))
    scale, zero = choose_grid(grouped, bits=bits, symmetric=symmetric)
    return Codes(to_codes(grouped, scale, zero, bits).flatten(1), scale, None if symmetric else zero)


def choose_grid(grouped: torch.Tensor, *, bits: int, symmetric: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(scale float32, zero int8) of each group of `grouped` [..., group_size]."""
    lowest, highest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    if symmetric:
        scale = torch.maximum(-low, high) / highest
    else:
        scale = (high - low) / (highest - lowest)
    scale = scale.where(scale > 0, 1.0)  # a group of zeros
    zero = torch.zeros_like(scale) if symmetric else (lowest - low / scale).round().clamp(lowest, highest)
    return scale, zero.to(torch.int8)


def to_codes(grouped: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, bits: int) -> torch.Tensor:
    """The nearest code of each number of `grouped` [..., group_size], int8; scale and zero [...]."""
    codes = (grouped / scale[..., None]).round() + zero[..., None]
    return codes.clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).to(torch.int8)
