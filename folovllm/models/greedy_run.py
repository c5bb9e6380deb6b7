"""A small decoder's greedy run in one call of our own compiled code: csrc/guess.cpp.

vLLM: none, each forward of a draft model is launched from Python (v1/spec_decode/llm_base_proposer.py)
"""

from __future__ import annotations

from ctypes import Structure, addressof, byref, c_void_p
from ctypes import cast as cast_pointer
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from folovllm.layers.compiled_ops import CompiledLinear
from folovllm.layers.linear import Embedding, Linear
from folovllm.models.decoder import Decoder
from folovllm.models.eagle import EagleHead
from folovllm.models.one_call import OneCallOps, Prepared
from folovllm.utils.cpu_kernels import DTYPE_NAMES, INT, POINTER, function, library
from folovllm.utils.recycled_memory import empty_in_huge_pages


class Run(Structure):
    """What csrc/guess.cpp declares, field by field in the same order."""

    _fields_ = [
        *((name, POINTER) for name in ("shape", "layers", "decoder", "lm_head", "fc")),
        *((name, POINTER) for name in ("embedding", "lm_weight", "fc_weight", "norm", "cos_sin")),
        *((name, POINTER) for name in ("hidden_norm", "token_norm", "before")),
        *((name, INT) for name in ("num_layers", "vocab", "scratch", "num_seqs", "num_known", "most", "max_blocks")),
        *((name, POINTER) for name in ("tokens", "known", "starts", "counts", "tables", "guesses")),
    ]


def prepared_run(decoder: Decoder, lm_head: Linear) -> Prepared | None:
    """None: these are not computed by the compiled code, or not in one call."""
    if not isinstance(decoder.ops, OneCallOps) or not isinstance(lm_head.method, CompiledLinear):
        return None
    return decoder.ops.prepared_for(decoder.layers, decoder.norm)


def in_bfloat16(linear: Linear) -> Linear:
    """The same bits from half the bytes, where our compiled code computes in float32 and the weight's numbers are
    bfloat16, as in most files; else `linear` itself. For few rows only: each block of rows widens the weight anew."""
    wide = linear.weight.detach()
    if not isinstance(linear.method, CompiledLinear) or wide.dtype != torch.float32:
        return linear
    narrow = empty_in_huge_pages(wide.shape, torch.bfloat16).copy_(wide)
    if not bool((narrow == wide).all()):
        return linear
    with torch.device("meta"):
        same = Linear(linear.in_features, linear.out_features, method=linear.method)
    same.weight = nn.Parameter(narrow, requires_grad=False)
    return same


def greedy_run(
    decoder: Decoder, embedding: Embedding, lm_head: Linear, known: list[list[int]], starts: list[int],
    counts: list[int], tables: np.ndarray, before: torch.Tensor | None = None,
) -> np.ndarray:  # fmt: skip
    """What is said next: [num_seqs, largest count] int64, of which row i has counts[i] tokens, one at least. Computed
    and in the decoder's cache are then the known tokens, and all of these but the last. prepared_run() is not None.

    Args:
        known: tokens of each sequence that have no keys yet, from position starts[i] to its last one.
        tables: [num_seqs, max_blocks] int32, contiguous: the blocks that hold all of this.
        before: of a head, the target's hidden state before each known token, [known tokens of all, hidden].
    """
    prepared, ops = prepared_run(decoder, lm_head), cast(OneCallOps, decoder.ops)
    assert prepared is not None
    tokens = np.array([token for ids in known for token in ids], np.int64)
    arrays = [np.array(each, np.int64) for each in ([len(ids) for ids in known], starts, counts)]
    guesses = np.zeros((len(known), max(counts)), np.int64)
    run = Run(
        addressof(prepared.shape), addressof(prepared.layers), _address(prepared.run), _product(lm_head),
        embedding=embedding.weight.data_ptr(), lm_weight=lm_head.weight.data_ptr(),
        norm=decoder.norm.weight.data_ptr(), cos_sin=decoder.rotary.cos_sin.data_ptr(),
        num_layers=len(prepared.layers), vocab=lm_head.out_features, scratch=prepared.scratch, num_seqs=len(known),
        num_known=len(tokens), most=max(counts), max_blocks=tables.shape[1], tokens=tokens.ctypes.data,
    )  # fmt: skip
    for name, array in zip(("known", "starts", "counts", "tables", "guesses"), (*arrays, tables, guesses), strict=True):
        setattr(run, name, array.ctypes.data)
    if isinstance(decoder, EagleHead):
        assert before is not None
        before = before.to(ops.flowing).contiguous()
        run.before, run.fc, run.fc_weight = before.data_ptr(), _product(decoder.fc), decoder.fc.weight.data_ptr()
        run.hidden_norm, run.token_norm = (norm.weight.data_ptr() for norm in (decoder.hidden_norm, decoder.token_norm))
    name = f"guess_{DTYPE_NAMES[ops.flowing]}_{DTYPE_NAMES[embedding.weight.dtype]}"
    getattr(library(), name)(byref(run))
    return guesses


def _product(linear: Linear) -> int | None:
    return _address(function(f"linear_{cast(CompiledLinear, linear.method).kernel(linear)}"))


def _address(compiled: Any) -> int | None:
    return cast_pointer(compiled, c_void_p).value
