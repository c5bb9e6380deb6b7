"""GPTQ (Frantar et al., 2022, arXiv:2210.17323): round a column, and let the columns that are left make up for it.

A product's error is d H d^T, with H the mean of x x^T over its inputs: where two inputs rise and fall together, an
error at one can be taken back at the other. Rounding column c by e, the columns after it do so best when they move by

    w[j] -= e * U[c, j] / U[c, c]        U: the upper Cholesky factor of the inverse of H

       done        | c |          left
    [ codes codes  | w |  w  w  w  w  w  w  w ]
                     └──▶ moved to make up for c
                         |- block -|- later -|    in a block at once; what is later in one product for a block

Row c of U has all that is known after the columns before c are fixed, so one factorisation serves the whole way.
Columns with large inputs come first, while there are still many left to make up for them. A column keeps its group's
scale, chosen before anything is moved.

vLLM: none; GPTQ's repository and GPTQModel
"""

from __future__ import annotations

import torch

from folovllm.layers.quantization.codes import Codes, to_codes
from folovllm.quantize.rounding import Grid

BLOCK = 128
DAMPING = (0.01, 0.1, 1.0)
"""Shares of H's mean diagonal that are added to its diagonal: the first with which it can be inverted."""


def gptq(weight: torch.Tensor, hessian: torch.Tensor, grid: Grid) -> Codes:
    """`weight` [out, in] and `hessian` [in, in], float32, in codes of `grid`."""
    size = weight.shape[1]
    order = hessian.diag().argsort(descending=True, stable=True)
    group = order // (size // grid.scale.shape[1])  # of the column that comes as the n-th
    upper = inverse_factor(hessian[order][:, order])
    left = weight[:, order]
    values = torch.empty_like(weight, dtype=torch.int8)
    for start in range(0, size, BLOCK):
        end = min(start + BLOCK, size)
        errors = torch.empty_like(left[:, start:end])
        for n in range(start, end):
            scale, zero = grid.scale[:, group[n]], grid.zero[:, group[n]]
            codes = to_codes(left[:, n, None], scale, zero, grid.bits)[:, 0]
            error = (left[:, n] - (codes.float() - zero) * scale) / upper[n, n]
            left[:, n:end] -= torch.outer(error, upper[n, n:end])
            values[:, order[n]] = codes
            errors[:, n - start] = error
        left[:, end:] -= errors @ upper[start:end, end:]
    return grid.codes(values)


def inverse_factor(hessian: torch.Tensor) -> torch.Tensor:
    """U, upper triangular, with U^T U the inverse of `hessian` [n, n], damped.

    Raises:
        ValueError: it has none.
    """
    size = range(len(hessian))
    damped = hessian.clone()
    for share in DAMPING:
        # An input that was always zero has a diagonal of 0: any number there leaves its weight alone.
        damped[size, size] = hessian.diag() + (share * hessian.diag().mean()).clamp(min=1e-8)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not failed and upper.isfinite().all():
                return upper
    raise ValueError("hessian must be positive definite once it is damped")
