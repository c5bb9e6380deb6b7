"""Products with codes, in our own compiled CPU kernels.

    weights   activations         kernel                       its name
    codes     as they are         csrc/linear_codes.cpp        codes4, codes8   float32; bfloat16 is rounded to 16 bits
    4 bits    8 bits, a token     csrc/linear_codes.cpp        codes4_int8
    8 bits    8 bits, a token     csrc/linear_int8.cpp         int8

vLLM: model_executor/kernels/linear/mixed_precision/cpu.py, model_executor/kernels/linear/scaled_mm/cpu.py
"""

from __future__ import annotations

import weakref

import torch
import torch.nn.functional as F
from torch import nn

from folovllm.errors import ModelLoadError
from folovllm.layers.compiled_ops import TILE_STEPS, has_tiles, panel_width
from folovllm.layers.linear import Linear
from folovllm.layers.quantization.codes import Codes
from folovllm.layers.quantization.linear import QuantizedLinear
from folovllm.layers.quantization.memory import LINE, WEIGHTS
from folovllm.utils.cpu_kernels import DTYPE_NAMES, function, library
from folovllm.utils.memory import release_freed_memory
from folovllm.utils.recycled_memory import RESULTS

LARGEST_GROUP = 128  # LARGEST_GROUP of csrc/codes.h


def kernel_group(codes: Codes) -> int:
    """The columns that a kernel takes together: the group, or an equal part of it if it is large; 0: none fits."""
    sizes = range(min(codes.group_size, LARGEST_GROUP), 7, -1)
    return next((size for size in sizes if size % 8 == 0 and codes.group_size % size == 0), 0)


def pack_codes(codes: Codes, bits: int, columns: int = 2) -> torch.Tensor:
    """As csrc/codes.h has them: panels of groups, each with its scales before its words. uint8, 1-D.

    columns: how many codes a kernel takes from a word at once.
    """
    group, width = kernel_group(codes), panel_width()
    outs, size = codes.values.shape
    codes = codes.in_groups(group)
    scales = [each for each in (codes.scale, codes.offset()) if each is not None]
    numbers = 32 // bits
    places = torch.tensor([32 // columns * (n % columns) + bits * (n // columns) for n in range(numbers)])
    digits = (codes.values.long() + 2 ** (bits - 1)).unflatten(1, (-1, numbers))
    words = (digits << places).sum(-1).to(torch.int32)  # [outs, words]; keeps the lowest 32 bits
    panels = -(-outs // width)
    rows = [each.float().view(torch.int32).unsqueeze(2) for each in scales]
    rows.append(words.view(outs, size // group, group // numbers))
    lines = F.pad(torch.cat(rows, 2), (0, 0, 0, 0, 0, panels * width - outs))  # [outs, groups, lines of a group]
    return _with_head(lines.unflatten(0, (panels, width)).permute(0, 2, 3, 1), [group, len(scales) > 1])


def pack_int8(codes: Codes) -> torch.Tensor:
    """For linear_int8.cpp, one group a row and no zeros: panels, with their scales and sums first. uint8, 1-D.

    A row has a whole number of words, or of 16 where the CPU multiplies tiles.
    """
    width, outs = panel_width(), len(codes.values)
    panels = -(-outs // width)
    together = 4 * TILE_STEPS if has_tiles() else 4
    words = F.pad(codes.values, (0, -codes.values.shape[1] % together)).view(torch.int32)
    sums = codes.values.sum(1, dtype=torch.int32)
    lines = torch.cat([codes.scale.view(torch.int32), sums[:, None], words], 1)
    lines = F.pad(lines, (0, 0, 0, panels * width - outs))
    return _with_head(lines.unflatten(0, (panels, width)).transpose(1, 2), None)


def _with_head(lines: torch.Tensor, head: list[int] | None) -> torch.Tensor:
    """Packed, behind a line with the numbers of `head` if there is one."""
    before = 0 if head is None else LINE
    packed = WEIGHTS.empty(before + lines.numel() * 4)
    if head is not None:
        packed[:before].zero_()
        packed[: 8 * len(head)].view(torch.int64).copy_(torch.tensor(head, dtype=torch.int64))
    packed[before:].view(torch.int32).view(lines.shape).copy_(lines)
    return packed


class CompiledQuantizedLinear(QuantizedLinear):
    """Keeps the codes, in the panels that a kernel reads."""

    def keep(self, layer: Linear, codes: Codes) -> None:
        of_bytes = self._kind() == "int8"
        if not of_bytes and not kernel_group(codes):
            raise ModelLoadError(
                f"{self.name} has {codes.values.shape[1]} inputs in groups of {codes.group_size}: the CPU kernels take "
                "groups that are a multiple of 8; FOLOVLLM_CPU_KERNELS=no computes without them"
            )
        columns = 2 if self.scheme.activation_bits is None else 4
        packed = pack_int8(codes) if of_bytes else pack_codes(codes, self.scheme.bits, columns)
        layer.weight = nn.Parameter(packed, requires_grad=False)
        # A thread that is late may still read it (csrc/pool.h), so its memory is given back when none can.
        weakref.finalize(layer.weight, library().wait_idle)
        if layer.bias is not None:
            layer.bias.data = layer.bias.data.float()
        release_freed_memory(4 * codes.values.numel())  # rounded in float32

    def kernel(self, layer: Linear) -> str:
        return self._kind()

    def _kind(self) -> str:
        if self.scheme.activation_bits is None:
            return f"codes{self.scheme.bits}"
        return "codes4_int8" if self.scheme.bits == 4 else "int8"

    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        out = RESULTS.empty((len(x), layer.out_features), x.dtype)
        function(f"linear_{DTYPE_NAMES[x.dtype]}_{self.kernel(layer)}")(
            x.data_ptr(), layer.weight.data_ptr(), None if layer.bias is None else layer.bias.data_ptr(),
            out.data_ptr(), len(x), layer.in_features, layer.out_features,
        )  # fmt: skip
        return out
