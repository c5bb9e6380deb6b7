"""The blocks of a GGUF file as codes of ours. Nothing is rounded: their codes are ours, and a scale is as many bits.

                  bytes of a block, and how many
    Q4_0 Q5_0     d 2 | high bits 4 | low 16           32 columns    (code - 8 or 16) * d
    Q4_1 Q5_1     d 2 | m 2 | high bits 4 | low 16                   code * d + m
    Q8_0          d 2 | 32                                           code * d
    Q4_K Q5_K     d 2 | m 2 | scales 12 | high 32 | low 128    256   code * d * s - m * t, s and t for each 32 columns
    Q6_K          low 128 | high 64 | scales 16 | d 2                (code - 32) * d * s, s for each 16

Only those of five bits have high ones, one for each column, or Q6_K, two. A byte's lower half is of an earlier column.

vLLM: none
"""

from __future__ import annotations

import torch

from folovllm.layers.quantization.codes import Codes
from folovllm.model_loader.gguf import BLOCKS

MIDDLE = {"4": 8, "5": 16, "6": 32}


def read_blocks(rows: torch.Tensor, kind: str) -> Codes:
    """rows: uint8 [outs, bytes of whole blocks]. kind: one of BLOCKS."""
    block = BLOCKS[kind]
    b = rows.unflatten(1, (-1, block.num_bytes))  # [outs, blocks, bytes]
    if kind == "Q8_0":
        return Codes(b[..., 2:].contiguous().view(torch.int8).flatten(1), _half(b[..., :2]).flatten(1), None)
    minimum: torch.Tensor | None = None
    if kind == "Q6_K":
        high = b[..., 128:192].unflatten(-1, (2, 1, 32)) >> _shifts(b, 0, 8, 2) & 3
        codes = _halves(b[..., :128], 64).flatten(-3) | high.flatten(-3) << 4
        scale = b[..., 192:208].contiguous().view(torch.int8) * _half(b[..., 208:])
    else:
        low = block.columns // 2
        codes = _halves(b[..., -low:], 32 if kind.endswith("K") else 16).flatten(-3)
        high = b[..., -low - block.columns // 8 : -low]
        if kind in ("Q5_0", "Q5_1"):
            codes = codes | (high.unsqueeze(-1) >> _shifts(b, 0, 8)[:, 0] & 1).flatten(-2) << 4
        elif kind == "Q5_K":
            codes = codes | (high.unsqueeze(-2) >> _shifts(b, 0, 8) & 1).flatten(-2) << 4
        scale = _half(b[..., :2])
        if not block.symmetric:
            minimum = _half(b[..., 2:4])
        if kind.endswith("K") and minimum is not None:
            first, second, both = b[..., 4:16].split(4, -1)
            scale = scale * torch.cat((first & 63, both & 15 | first >> 6 << 4), -1)
            minimum = -minimum * torch.cat((second & 63, both >> 4 | second >> 6 << 4), -1)
    middle = MIDDLE[kind[1]]
    if minimum is not None:
        minimum = (minimum + middle * scale).flatten(1)
    return Codes((codes.to(torch.int8) - middle).flatten(1), scale.flatten(1), None, minimum)


def _half(pair: torch.Tensor) -> torch.Tensor:
    """Two bytes of each block, [..., 2], as the float16 that they are: float32 [..., 1]."""
    return pair.contiguous().view(torch.float16).float()


def _halves(low: torch.Tensor, together: int) -> torch.Tensor:
    """[..., bytes] -> [..., bytes / together, 2, together]: the lower halves of so many, then their upper ones."""
    return low.unflatten(-1, (-1, 1, together)) >> _shifts(low, 0, 8, 4) & 15


def _shifts(like: torch.Tensor, *of: int) -> torch.Tensor:
    """[number of shifts, 1]"""
    return torch.arange(*of, dtype=torch.uint8, device=like.device)[:, None]
