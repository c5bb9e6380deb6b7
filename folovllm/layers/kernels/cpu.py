"""Our own CPU kernels for what a layer does beside attention: csrc/linear.cpp and csrc/layers.cpp.

Each function takes torch tensors, checks nothing that its caller has arranged, and hands pointers to a compiled
function. A call costs about two microseconds. Activations are float32 or bfloat16; norms' weights, biases, cos and sin
are float32.

vLLM: csrc/cpu/layernorm.cpp, csrc/cpu/pos_encoding.cpp, csrc/cpu/activation.cpp
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

from folovllm.utils.cpu_kernels import library

POINTER, INT, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
SIGNATURES = {
    "linear": [POINTER] * 4 + [INT] * 3,
    "add_rms_norm": [POINTER] * 4 + [INT] * 2 + [FLOAT],
    "norm_rotary": [POINTER] * 5 + [INT] * 5 + [FLOAT],
    "silu_mul": [POINTER] * 2 + [INT] * 2,
}


@cache
def kernel(name: str, *dtypes: torch.dtype) -> Any:
    """The compiled function of that name for those dtypes."""
    function = getattr(library(), "_".join([name, *(NAMES[dtype] for dtype in dtypes)]))
    function.argtypes, function.restype = SIGNATURES[name], None
    return function


@cache
def panel_width() -> int:
    """How many rows of a weight lie in one panel: twice what a register holds."""
    return int(library().panel_width())


def pack(weight: torch.Tensor) -> torch.Tensor:
    """`weight` [out, in] -> panels [ceil(out / width), in, width], the last one filled with zeros."""
    outs, size = weight.shape
    width = panel_width()
    packed = weight.new_empty(-(-outs // width), size, width)
    full = outs // width
    packed[:full] = weight[: full * width].view(full, width, size).transpose(1, 2)
    if full < len(packed):
        packed[full] = 0
        packed[full, :, : outs % width] = weight[full * width :].t()
    return packed


def linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, outs: int) -> torch.Tensor:
    """`x` [num_tokens, in], contiguous float32 -> [num_tokens, outs]. A row's bits do not depend on the other rows."""
    out = x.new_empty(len(x), outs)
    kernel("linear", packed.dtype)(
        x.data_ptr(), packed.data_ptr(), _pointer(bias), out.data_ptr(), len(x), x.shape[1], outs
    )
    return out


def add_rms_norm(x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The norm of `x` [num_tokens, size], or of `residual`, to which x is added first, in place."""
    out = torch.empty_like(x)
    kernel("add_rms_norm", x.dtype)(
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
    kernel("norm_rotary", heads.dtype)(
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
    out = gate_up.new_empty(len(gate_up), size)
    kernel("silu_mul", gate_up.dtype)(gate_up.data_ptr(), out.data_ptr(), len(gate_up), size)
    return out


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
