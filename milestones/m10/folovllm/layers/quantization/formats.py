"""A checkpoint's layouts of a weight's codes: one small class for each, which reads them into Codes.

    eight 4-bit codes in an int32, lowest bits first, of a weight [out, in]:

    gptq             qweight [in / 8, out]     8 inputs of one output, down a column
    awq              qweight [in, out / 8]     8 outputs of one input, in the order 0 2 4 6 1 3 5 7
    pack-quantized   weight_packed [out, in / 8]   8 inputs of one output, along a row
    int-quantized    weight [out, in]          int8, as they are

What is stored is code + 8 (128 for 8 bits), so that it is not negative; int-quantized stores the code itself.

vLLM: model_executor/layers/quantization/auto_gptq.py, auto_awq.py,
      model_executor/layers/quantization/compressed_tensors/schemes/
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from folovllm.errors import ModelLoadError
from folovllm.layers.quantization.codes import Codes
from folovllm.model_loader.quant_scheme import QuantScheme

AWQ_ORDER = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
"""Which of eight outputs the n-th four bits hold."""


class Stored(NamedTuple):
    """A tensor of a checkpoint. Its dtype is None where any floating-point one will do."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None


Tensors = dict[str, torch.Tensor]


def unpack(packed: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    """int32 [.., n, ..] -> the numbers in [0, 2^bits) that it holds, uint8 [.., n * 32 / bits, ..]: lowest first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=packed.device)
    digits = (packed.unsqueeze(dim + 1) >> shifts.view(-1, *[1] * (packed.dim() - 1 - dim))) & (2**bits - 1)
    return digits.to(torch.uint8).flatten(dim, dim + 1)


def pack(numbers: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    """What unpack() takes apart. The last int32 is filled up with zeros."""
    each, left = 32 // bits, -numbers.shape[dim] % (32 // bits)
    if left:
        shape = list(numbers.shape)
        shape[dim] = left
        numbers = torch.cat([numbers, numbers.new_zeros(shape)], dim)
    digits = numbers.long().unflatten(dim, (-1, each))
    words = (digits << torch.arange(0, 32, bits).view(-1, *[1] * (numbers.dim() - 1 - dim))).sum(dim + 1)
    return words.to(torch.int32)  # keeps the lowest 32 bits


def centred(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Numbers in [0, 2^bits) -> codes in [-2^(bits-1), 2^(bits-1)), int8."""
    return (numbers.to(torch.int16) - 2 ** (bits - 1)).to(torch.int8)


class WeightFormat:
    """One way of storing. `name` is the layer's in error messages."""

    def tensors(self, outs: int, size: int, scheme: QuantScheme) -> dict[str, Stored]:
        """The tensors that a checkpoint has for a weight [outs, size]."""
        raise NotImplementedError

    def read(self, tensors: Tensors, scheme: QuantScheme, name: str) -> Codes:
        raise NotImplementedError

    def write(self, codes: Codes, scheme: QuantScheme, scales: torch.dtype) -> Tensors:
        """What read() reads. `scales`: their dtype in the checkpoint."""
        raise NotImplementedError(f"{type(self).__name__} is read only: compressed-tensors' formats are written")


class GPTQ(WeightFormat):
    """Zeros are not read: all codes are symmetric, and files differ in what they write there."""

    def tensors(self, outs: int, size: int, scheme: QuantScheme) -> dict[str, Stored]:
        groups, each = num_groups(size, scheme), 32 // scheme.bits
        return {
            "qweight": Stored((size // each, outs), torch.int32),
            "qzeros": Stored((groups, outs // each), torch.int32),
            "scales": Stored((groups, outs), None),
            "g_idx": Stored((size,), torch.int32),
        }

    def read(self, tensors: Tensors, scheme: QuantScheme, name: str) -> Codes:
        groups = len(tensors["scales"])
        g_idx = tensors["g_idx"]
        if not torch.equal(g_idx.cpu().long(), torch.arange(len(g_idx)) // (len(g_idx) // groups)):
            raise ModelLoadError(f"{name}.g_idx puts columns into groups out of order, which is not supported")
        codes = centred(unpack(tensors["qweight"], scheme.bits, 0), scheme.bits)
        return Codes(codes.T.contiguous(), tensors["scales"].T.float().contiguous(), None)


class AWQ(WeightFormat):
    def tensors(self, outs: int, size: int, scheme: QuantScheme) -> dict[str, Stored]:
        groups = num_groups(size, scheme)
        return {
            "qweight": Stored((size, outs // 8), torch.int32),
            "qzeros": Stored((groups, outs // 8), torch.int32),
            "scales": Stored((groups, outs), None),
        }

    def read(self, tensors: Tensors, scheme: QuantScheme, name: str) -> Codes:
        def outputs(packed: torch.Tensor) -> torch.Tensor:
            mixed = centred(unpack(packed, 4, 1), 4).unflatten(1, (-1, 8))
            ordered = torch.empty_like(mixed)
            ordered[..., AWQ_ORDER] = mixed
            return ordered.flatten(1).T.contiguous()

        return Codes(outputs(tensors["qweight"]), tensors["scales"].T.float().contiguous(), outputs(tensors["qzeros"]))


class PackQuantized(WeightFormat):
    def tensors(self, outs: int, size: int, scheme: QuantScheme) -> dict[str, Stored]:
        groups, each = num_groups(size, scheme), 32 // scheme.bits
        found = {
            "weight_packed": Stored((outs, -(-size // each)), torch.int32),
            "weight_scale": Stored((outs, groups), None),
            "weight_shape": Stored((2,), torch.int64),
        }
        if not scheme.symmetric:
            found["weight_zero_point"] = Stored((-(-outs // each), groups), torch.int32)
        return found

    def read(self, tensors: Tensors, scheme: QuantScheme, name: str) -> Codes:
        outs, size = tensors["weight_shape"].tolist()
        packed, scale = tensors["weight_packed"], tensors["weight_scale"]
        if outs != len(packed) or -(-size * scheme.bits // 32) != packed.shape[1]:
            raise ModelLoadError(f"{name}.weight_shape {[outs, size]} is not that of weight_packed {[*packed.shape]}")
        values = centred(unpack(packed, scheme.bits, 1)[:, :size], scheme.bits).contiguous()
        zero = None
        if not scheme.symmetric:
            zero = centred(unpack(tensors["weight_zero_point"], scheme.bits, 0)[:outs], scheme.bits).contiguous()
        return Codes(values, scale.float(), zero)

    def write(self, codes: Codes, scheme: QuantScheme, scales: torch.dtype) -> Tensors:
        half = 2 ** (scheme.bits - 1)
        found = {
            "weight_packed": pack(codes.values.int() + half, scheme.bits, 1),
            "weight_scale": codes.scale.to(scales),
            "weight_shape": torch.tensor(codes.values.shape),
        }
        if codes.zero is not None:
            found["weight_zero_point"] = pack(codes.zero.int() + half, scheme.bits, 0)
        return found


class IntQuantized(WeightFormat):
    def tensors(self, outs: int, size: int, scheme: QuantScheme) -> dict[str, Stored]:
        return {
            "weight": Stored((outs, size), torch.int8),
            "weight_scale": Stored((outs, num_groups(size, scheme)), None),
        }

    def read(self, tensors: Tensors, scheme: QuantScheme, name: str) -> Codes:
        return Codes(tensors["weight"], tensors["weight_scale"].float(), None)

    def write(self, codes: Codes, scheme: QuantScheme, scales: torch.dtype) -> Tensors:
        return {"weight": codes.values, "weight_scale": codes.scale.to(scales)}


FORMATS: dict[str, WeightFormat] = {
    "gptq": GPTQ(), "awq": AWQ(), "pack-quantized": PackQuantized(), "int-quantized": IntQuantized(),
}  # fmt: skip


def num_groups(size: int, scheme: QuantScheme) -> int:
    """Groups of a row of `size` columns.

    Raises:
        ModelLoadError: they do not come out even.
    """
    if scheme.group_size == -1:
        return 1
    if size % scheme.group_size:
        raise ModelLoadError(
            f"quantization_config.group_size must divide the {size} inputs of each layer, got {scheme.group_size}"
        )
    return size // scheme.group_size
