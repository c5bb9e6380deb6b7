"""A decoder that runs in our own compiled CPU kernels: its products, and the layers' operations between them.

    passes of a decode layer of Qwen3     torch     here
    residual and norm, twice                16        2
    norm of heads, RoPE                     10        1
    SwiGLU                                   2        1
    K and V into the cache                   2        1
    products                                 4        4     over weights in panels (csrc/panels.h)

Each pass is one call, of about two microseconds, and at most one wait for other threads. A function here checks nothing
that its caller has arranged. Norms' weights, biases, cos and sin are float32.

A CPU without bf16 units computes in float32, from weights that stay bfloat16: the embeddings are widened, and all that
flows behind them is float32.

vLLM: csrc/cpu/layernorm.cpp, csrc/cpu/pos_encoding.cpp, csrc/cpu/activation.cpp,
      model_executor/layers/utils.py (dispatch_cpu_unquantized_gemm)
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import cache
from typing import Any, Protocol

import torch
from torch import nn

from folovllm.layers.linear import Linear, LinearMethod
from folovllm.layers.norm import QKNorm, RMSNorm
from folovllm.layers.ops import QKV, LayerOps
from folovllm.layers.rotary import Rotary
from folovllm.utils.cpu_kernels import DTYPE_NAMES, function, library, unavailable_reason
from folovllm.utils.devices import cpu_has_bf16_units
from folovllm.utils.memory import release_freed_memory
from folovllm.utils.recycled_memory import RESULTS, empty_in_huge_pages

TILE_STEPS = 16  # TILE_WORDS of csrc/tiles.h


@cache
def panel_width() -> int:
    """How many rows of a weight are in one panel: twice what a register holds."""
    return int(library().panel_width())


@cache
def has_bf16_pairs() -> bool:
    """Whether the kernels run and this CPU multiplies pairs of bfloat16 numbers, and adds them to a float32 sum."""
    return unavailable_reason() is None and bool(library().has_bf16_pairs())


@cache
def has_tiles() -> bool:
    """Whether this CPU multiplies tiles of bfloat16 numbers (AMX), and the system lets it."""
    return bool(library().has_tiles())


def pack(weight: torch.Tensor, *, pairs: bool = False) -> nn.Parameter:
    """`weight` [out, in] -> panels [ceil(out / width), in, width, 1], filled up with zeros.

    pairs: two columns at a time, [ceil(out / width), steps, width, 2], with steps = ceil(in / 2), or the next multiple
    of 16 where has_tiles(). Only where has_bf16_pairs().
    """
    outs, size = weight.shape
    width, columns = panel_width(), 2 if pairs else 1
    together = columns * (TILE_STEPS if pairs and has_tiles() else 1)
    panels, steps = outs // width, size // columns
    shape = (-(-outs // width), -(-size // together) * together // columns, width, columns)
    filled = empty_in_huge_pages(shape, weight.dtype).zero_()
    whole = weight[: panels * width, : steps * columns]
    filled[:panels, :steps] = whole.unflatten(0, (panels, width)).unflatten(2, (steps, columns)).transpose(1, 2)
    if left := outs - panels * width:
        rows = weight[-left:, : steps * columns]
        filled[-1, :steps, :left] = rows.unflatten(1, (steps, columns)).transpose(0, 1)
    if size % columns:
        column = weight.new_zeros(len(filled) * width)
        column[:outs] = weight[:, -1]
        filled[:, steps, :, 0] = column.view(-1, width)
    packed = nn.Parameter(filled, requires_grad=False)
    # A thread that is late may still read it (csrc/pool.h), so its memory is given back when none can.
    weakref.finalize(packed, library().wait_idle)
    return packed


@cache
def product_name(dtype: torch.dtype, columns: int) -> str:
    """How the compiled functions call a weight of pack() with so many columns at a time: the end of "linear_"."""
    if columns == 1:
        return DTYPE_NAMES[dtype]
    return "bf16_tiles" if has_tiles() else "bf16_pairs"


def linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, outs: int) -> torch.Tensor:
    """`x` [num_tokens, in], contiguous -> [num_tokens, outs]. A row's bits do not depend on the other rows.

    x is float32, or bfloat16 where the weight was packed in pairs; bias is float32.
    """
    out = RESULTS.empty((len(x), outs), x.dtype)
    multiply = function(f"linear_{product_name(packed.dtype, packed.shape[3])}")
    multiply(x.data_ptr(), packed.data_ptr(), _pointer(bias), out.data_ptr(), len(x), x.shape[1], outs)
    return out


class PackedMethod(Protocol):
    """A linear layer's method whose packed weight the compiled functions read."""

    def kernel(self, layer: Linear) -> str:
        """How they call such a weight: in "linear_…" and "decoder_…"."""


class CompiledLinear(LinearMethod):
    """Keeps a weight in panels, [panels, steps, width, columns] as pack() makes them, and no other copy of it. A
    tied head has them beside the embedding: for Qwen3-0.6B, 26% of the weights a second time."""

    def process_weights_after_loading(self, layer: Linear) -> None:
        layer.weight = pack(layer.weight.detach(), pairs=multiplies_pairs(layer.weight.dtype))
        if layer.bias is not None:
            layer.bias.data = layer.bias.data.float()
        release_freed_memory(layer.weight.nbytes)  # weights of a few MB are freed into the heap, where they would stay

    def kernel(self, layer: Linear) -> str:
        return product_name(layer.weight.dtype, layer.weight.shape[3])

    def apply(self, layer: Linear, x: torch.Tensor) -> torch.Tensor:
        dtype = torch.bfloat16 if layer.weight.shape[3] == 2 else torch.float32
        return linear(x.to(dtype).contiguous(), layer.weight, layer.bias, layer.out_features).to(x.dtype)


def rms_norm(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As layers/norm.py has it, for x [num_tokens, size]. The sum is written over `residual`, which is returned."""
    out = RESULTS.empty(x.shape, x.dtype)
    function(f"add_rms_norm_{DTYPE_NAMES[x.dtype]}")(
        x.data_ptr(), _pointer(residual), weight.data_ptr(), out.data_ptr(), len(x), x.shape[1], eps
    )
    return out, x if residual is None else residual


def norm_rotary(heads: torch.Tensor, norm: QKNorm | None, rotary: Rotary, num_heads: int, num_kv_heads: int) -> QKV:
    """As layers/ops.py has it, in place, where the projection has put the heads."""
    (cos, sin), (q_weight, k_weight) = rotary, (None, None) if norm is None else norm.weight
    function(f"norm_rotary_{DTYPE_NAMES[heads.dtype]}")(
        heads.data_ptr(), _pointer(q_weight), _pointer(k_weight), cos.data_ptr(), sin.data_ptr(), len(heads),
        heads.stride(0), num_heads, num_kv_heads, heads.shape[2], 0.0 if norm is None else norm.eps,
    )  # fmt: skip
    q, k, v = heads.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    return q, k, v


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`gate_up` [num_tokens, 2 * size] -> silu(gate) * up [num_tokens, size]."""
    size = gate_up.shape[1] // 2
    out = RESULTS.empty((len(gate_up), size), gate_up.dtype)
    function(f"silu_mul_{DTYPE_NAMES[gate_up.dtype]}")(gate_up.data_ptr(), out.data_ptr(), len(gate_up), size)
    return out


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


class CompiledOps(LayerOps):
    """For a model with weights of `dtype`.

    Raises:
        ValueError: the kernels cannot run here, or not in that dtype; the text says why.
    """

    def __init__(self, dtype: torch.dtype, linear: LinearMethod | None = None) -> None:
        if (reason := compiled_unavailable_reason(dtype)) is not None:
            raise ValueError(f"model must be one that the compiled CPU kernels can run: {reason}")
        super().__init__(linear or CompiledLinear(), rms_norm, norm_rotary, silu_mul)
        self.flowing = dtype if multiplies_pairs(dtype) else torch.float32
        """What flows between the layers."""

    def process_weights_after_loading(self, model: nn.Module) -> None:
        super().process_weights_after_loading(model)
        for module in model.modules():
            if isinstance(module, RMSNorm | QKNorm):
                module.weight.data = module.weight.data.float()

    def run_layers(
        self, layers: Iterable[nn.Module], norm: RMSNorm, x: torch.Tensor, rotary: Rotary, metadata: Any
    ) -> torch.Tensor:
        return super().run_layers(layers, norm, x.to(self.flowing), rotary, metadata)


def compiled_unavailable_reason(dtype: torch.dtype) -> str | None:
    """Why the compiled kernels cannot run a model with weights of `dtype`, or None if they can."""
    if dtype not in DTYPE_NAMES:
        return f"the weights are {str(dtype).removeprefix('torch.')}, and not float32 or bfloat16"
    return unavailable_reason()


def multiplies_pairs(dtype: torch.dtype) -> bool:
    """Whether products of this dtype take two bfloat16 numbers at a time. They then give bfloat16, else float32."""
    return dtype == torch.bfloat16 and cpu_has_bf16_units() and has_bf16_pairs()
