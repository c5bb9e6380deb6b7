"""Experts of a model on a GPU: one launch multiplies by the weights of all of a layer's, or by their codes.

    loaded     expert by expert: weights; Codes ─ packed ─▶ words, scales, offsets
    stack()    those of all experts side by side; of experts that are not alike the weights that are meant

A program finds its expert and its rows as in layers/kernels/experts.py, and adds up the lines of that expert's weight
as in kernels/linear_codes.py. How many rows an expert has stays on the device, so a CUDA graph replays any choice.

vLLM: model_executor/layers/fused_moe/fused_moe.py (fused_moe_kernel_gptq_awq)
"""
# mypy: allow-incomplete-defs

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import nn

from folovllm.layers.kernels import experts as kernels
from folovllm.layers.kernels.matmul import INTERPRETED, STAGES
from folovllm.layers.kernels.silu_mul import silu_mul
from folovllm.layers.linear import PLAIN, Linear
from folovllm.layers.moe import Experts, Groups, Routing
from folovllm.layers.quantization.cuda import TritonCodesLinear
from folovllm.layers.quantization.kernels.linear_codes import PackedCodes, _add_line
from folovllm.utils.gpus import gpu_of


class StackedExperts(Experts):
    route = staticmethod(kernels.route)

    def __init__(self, count: int, make: Callable[[int], nn.Module], *, invariant: bool = False) -> None:
        super().__init__(count, make)
        self.invariant = invariant

    def stack(self) -> None:
        """The weights have been loaded. No expert is computed alone from here on."""
        sides: list[Any] = [[expert.get_submodule(f"{name}_proj") for expert in self] for name in ("gate_up", "down")]
        stacks: list[Any] = list(map(_stack_codes, sides))
        if None in stacks:
            stacks = [torch.stack(list(map(_weight, side))) for side in sides]
        for side, stack in zip(sides, stacks, strict=True):
            for product, own in zip(side, stack.words if isinstance(stack, PackedCodes) else stack, strict=True):
                product.method, product.weight = PLAIN, nn.Parameter(own, requires_grad=False)
        self.gate_up, self.down = stacks
        torch.cuda.empty_cache()  # no stack finds room where single experts were

    def forward(self, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        multiply: Any = grouped_codes if isinstance(self.down, PackedCodes) else kernels.grouped_mlps
        groups = kernels.group(routing.experts, len(self))
        return multiply(x, self.gate_up, self.down, groups, routing, invariant=self.invariant)  # type: ignore[no-any-return]


def _stack_codes(side: list[Linear]) -> PackedCodes | None:
    """[num_experts, ...] each; None: they are not alike, or some have none."""
    parts = [product.method.packed for product in side if isinstance(product.method, TritonCodesLinear)]
    kinds = {(part.words.shape, part.scale.shape, part.offset is None, *part[3:]) for part in parts}
    if len(parts) < len(side) or len(kinds) > 1:
        return None
    offsets = [part.offset for part in parts if part.offset is not None]
    words, scale = torch.stack([part.words for part in parts]), torch.stack([part.scale for part in parts])
    return PackedCodes(words, scale, torch.stack(offsets) if offsets else None, *parts[0][3:])


def _weight(product: Linear) -> torch.Tensor:
    """Of codes, the one that is meant: each column times one."""
    method = product.method
    if not isinstance(method, TritonCodesLinear):
        return product.weight
    return method.apply(product, torch.eye(product.in_features, dtype=method.dtype, device=product.weight.device)).T


@triton.jit(do_not_specialize=["num_experts", "top_k"])
def _experts_codes_kernel(
    x_ptr, words_ptr, scale_ptr, offset_ptr, order_ptr, ends_ptr, out_ptr, num_experts, top_k,
    IN: tl.constexpr, OUTS: tl.constexpr, LINES: tl.constexpr, GATHERS: tl.constexpr,
    BITS: tl.constexpr, GROUP: tl.constexpr, PIECE: tl.constexpr, E4M3: tl.constexpr, EVEN: tl.constexpr,
    EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """GATHERS: rows of x are gathered; else those of the result are put back."""
    expert, first, end = kernels.find_tile(ends_ptr, num_experts, EXPERTS, BLOCK_M)
    if expert >= num_experts:
        return
    WORDS: tl.constexpr = PIECE // 2
    pairs, columns = first + tl.arange(0, BLOCK_M), tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    # What is behind the last pair or output reads that one again: its result is not stored.
    pair, column, expert = tl.minimum(pairs, end - 1), tl.minimum(columns, OUTS - 1), expert.to(tl.int64)
    place = tl.load(order_ptr + pair)
    row, to = pair, place
    if GATHERS:
        row, to = place // top_k, pair
    x_at = x_ptr + (row * IN)[None, :] + tl.arange(0, PIECE)[:, None]
    words_at = words_ptr + expert * (LINES * OUTS * WORDS) + (column * WORDS)[:, None] + tl.arange(0, WORDS)[None, :]
    in_groups = expert * (LINES * PIECE * (16 // BITS) // GROUP * OUTS) + column
    acc = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    for line in range(LINES):
        acc = _add_line(
            acc, line, words_at, scale_ptr + in_groups, offset_ptr + in_groups, x_at, OUTS * WORDS, IN, OUTS,
            BITS, GROUP, PIECE, E4M3, EVEN, INTERPRETED,
        )  # fmt: skip
    exists = (pairs < end)[None, :] & (columns < OUTS)[:, None]
    tl.store(out_ptr + (to * OUTS)[None, :] + columns[:, None], acc.to(out_ptr.dtype.element_ty), mask=exists)


def grouped_codes(
    x: torch.Tensor, gate_up: PackedCodes, down: PackedCodes, groups: Groups, routing: Routing, *, invariant: bool
) -> torch.Tensor:
    """As grouped_mlps(), of stacked codes: x [num_tokens, hidden] -> each token's weighted sum, of x's dtype."""
    (num_tokens, top_k), num_experts, out = routing.experts.shape, len(down.words), torch.empty_like(x)
    if not num_tokens:
        return out
    num_pairs, gpu = num_tokens * top_k, gpu_of(x.device)
    block_m, block_n, _ = kernels.tiles(num_pairs, num_experts, x.element_size(), invariant=invariant)
    stages = 2 if gpu.has_small_tiles and block_m > kernels.FEW_ROWS else gpu.stages(STAGES)

    def multiply(rows: torch.Tensor, by: PackedCodes, *, gathers: bool) -> torch.Tensor:
        _, lines, outs, words = by.words.shape
        made = x.new_empty(num_pairs, outs)
        _experts_codes_kernel[(kernels.most_tiles(num_pairs, num_experts, block_m), triton.cdiv(outs, block_n))](
            rows, by.words, by.scale, by.scale if by.offset is None else by.offset, *groups, made, num_experts, top_k,
            IN=by.in_features, OUTS=outs, LINES=lines, GATHERS=gathers, BITS=by.bits, GROUP=by.group, PIECE=2 * words,
            E4M3=by.offset is None, EVEN=by.in_features == lines * words * 32 // by.bits,
            EXPERTS=triton.next_power_of_2(num_experts), BLOCK_M=block_m, BLOCK_N=block_n, INTERPRETED=INTERPRETED,
            num_warps=4, num_stages=stages,
        )  # fmt: skip
        return made

    rows = multiply(silu_mul(multiply(x.contiguous(), gate_up, gathers=True)), down, gathers=False)
    kernels.combine_kernel[(num_tokens, triton.cdiv(x.shape[1], kernels.COLUMNS))](
        rows, routing.weights.contiguous(), out, top_k, x.shape[1], COLUMNS=kernels.COLUMNS, num_warps=4
    )
    return out
