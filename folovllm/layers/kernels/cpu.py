"""Our own CPU kernels for what a layer does beside attention: csrc/linear.cpp and csrc/layers.cpp.

Each function takes torch tensors, checks nothing that its caller has arranged, and hands pointers to a compiled
function. A call costs about two microseconds. Activations are float32 or bfloat16; norms' weights, biases, cos and sin
are float32.

vLLM: csrc/cpu/layernorm.cpp, csrc/cpu/pos_encoding.cpp, csrc/cpu/activation.cpp
"""

from __future__ import annotations

import weakref
from functools import cache
from typing import Any

import torch

from folovllm.utils.cpu_kernels import DTYPE_NAMES, FLOAT, INT, POINTER, function, library
from folovllm.utils.devices import empty_in_huge_pages
from folovllm.utils.recycled_memory import RESULTS

TILE_STEPS = 16  # TILE_PAIRS of csrc/tiles.h
LINEAR = [POINTER] * 4 + [INT] * 3
SIGNATURES: dict[str, list[Any]] = {
    "add_rms_norm": [POINTER] * 4 + [INT] * 2 + [FLOAT],
    "norm_rotary": [POINTER] * 5 + [INT] * 5 + [FLOAT],
    "silu_mul": [POINTER] * 2 + [INT] * 2,
}


@cache
def _kernel(name: str, dtype: torch.dtype) -> Any:
    """The compiled function of that name for that dtype."""
    return function(f"{name}_{DTYPE_NAMES[dtype]}", SIGNATURES[name])


@cache
def _linear(name: str) -> Any:
    return function(name, LINEAR)


@cache
def panel_width() -> int:
    """How many rows of a weight lie in one panel: twice what a register holds."""
    return int(library().panel_width())


@cache
def has_bf16_pairs() -> bool:
    """Whether this CPU multiplies pairs of bfloat16 numbers, and adds them to a float32 sum."""
    return bool(library().has_bf16_pairs())


@cache
def has_tiles() -> bool:
    """Whether this CPU multiplies tiles of bfloat16 numbers (AMX), and the system lets it."""
    return bool(library().has_tiles())


def pack(weight: torch.Tensor, *, pairs: bool = False) -> torch.Tensor:
    """`weight` [out, in] -> panels [ceil(out / width), in, width, 1], filled up with zeros.

    pairs: two columns at a time, [ceil(out / width), steps, width, 2], with steps = ceil(in / 2), or the next multiple
    of 16 where has_tiles(). Only where has_bf16_pairs().
    """
    outs, size = weight.shape
    width, columns = panel_width(), 2 if pairs else 1
    together = columns * (TILE_STEPS if pairs and has_tiles() else 1)
    panels, steps = outs // width, size // columns
    shape = (-(-outs // width), -(-size // together) * together // columns, width, columns)
    packed = empty_in_huge_pages(shape, weight.dtype).zero_()
    whole = weight[: panels * width, : steps * columns]
    packed[:panels, :steps] = whole.unflatten(0, (panels, width)).unflatten(2, (steps, columns)).transpose(1, 2)
    if left := outs - panels * width:
        rows = weight[-left:, : steps * columns]
        packed[-1, :steps, :left] = rows.unflatten(1, (steps, columns)).transpose(0, 1)
    if size % columns:
        column = weight.new_zeros(len(packed) * width)
        column[:outs] = weight[:, -1]
        packed[:, steps, :, 0] = column.view(-1, width)
    # A thread that is late may still read it (csrc/pool.h), so its memory is given back when none can.
    weakref.finalize(packed, library().wait_idle)
    return packed


def linear_name(packed: torch.Tensor) -> str:
    """Which function multiplies what pack() has made."""
    if packed.shape[3] == 1:
        return f"linear_{DTYPE_NAMES[packed.dtype]}"
    return "linear_bf16_tiles" if has_tiles() else "linear_bf16_pairs"


def linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, outs: int) -> torch.Tensor:
    """`x` [num_tokens, in], contiguous -> [num_tokens, outs]. A row's bits do not depend on the other rows.

    x is float32, or bfloat16 where the weight was packed in pairs; bias is float32.
    """
    out = RESULTS.empty((len(x), outs), x.dtype)
    multiply = _linear(linear_name(packed))
    multiply(x.data_ptr(), packed.data_ptr(), _pointer(bias), out.data_ptr(), len(x), x.shape[1], outs)
    return out


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The norm of `x` [num_tokens, size], or of `residual`, to which x is added first, in place."""
    out = RESULTS.empty(x.shape, x.dtype)
    _kernel("add_rms_norm", x.dtype)(
        x.data_ptr(), _pointer(residual), weight.data_ptr(), out.data_ptr(), len(x), x.shape[1], eps
    )
    return out


def norm_rotary(
    heads: torch.Tensor,
    weights: tuple[torch.Tensor, torch.Tensor] | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
) -> None:
    """Normalise and turn q and k in `heads` [num_tokens, num_heads + 2 * num_kv_heads, head_size], in place.

    weights: [head_size] for q and for k; None: they are turned only. cos, sin: as apply_rotary() takes them.
    """
    q, k = weights or (None, None)
    _kernel("norm_rotary", heads.dtype)(
        heads.data_ptr(),
        _pointer(q),
        _pointer(k),
        cos.data_ptr(),
        sin.data_ptr(),
        len(heads),
        heads.stride(0),
        num_heads,
        num_kv_heads,
        heads.shape[2],
        eps,
    )


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`gate_up` [num_tokens, 2 * size] -> silu(gate) * up [num_tokens, size]."""
    size = gate_up.shape[1] // 2
    out = RESULTS.empty((len(gate_up), size), gate_up.dtype)
    _kernel("silu_mul", gate_up.dtype)(gate_up.data_ptr(), out.data_ptr(), len(gate_up), size)
    return out


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
