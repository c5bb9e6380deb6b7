"""A small decoder's greedy run in one call of our own compiled code: csrc/guess.cpp.

vLLM: none, each forward of a draft model is launched from Python (v1/spec_decode/llm_base_proposer.py)
"""

from __future__ import annotations

from ctypes import Structure, addressof, byref, c_void_p
from ctypes import cast as cast_pointer
from typing import Any, cast

import numpy as np

from folovllm.layers.compiled_ops import CompiledLinear
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.models.one_call import OneCallOps, Prepared
from folovllm.utils.cpu_kernels import DTYPE_NAMES, INT, POINTER, function, library


class Run(Structure):
    """What csrc/guess.cpp declares, field by field in the same order."""

    _fields_ = [
        *((name, POINTER) for name in ("shape", "layers", "decoder", "head", "embedding", "head_weight")),
        *((name, POINTER) for name in ("norm", "cos_sin")),
        *((name, INT) for name in ("num_layers", "vocab", "scratch", "num_seqs", "most_known", "most", "max_blocks")),
        *((name, POINTER) for name in ("known", "starts", "counts", "tokens", "tables", "guesses")),
    ]


def prepared_run(model: DecoderForCausalLM) -> Prepared | None:
    """None: this model is not computed by the compiled code, or not in one call."""
    decoder = model.model
    if not isinstance(decoder.ops, OneCallOps) or not isinstance(model.lm_head.method, CompiledLinear):
        return None
    return decoder.ops.prepared_for(decoder.layers, decoder.norm)


def greedy_run(
    model: DecoderForCausalLM,
    prepared: Prepared,
    known: list[list[int]],
    starts: list[int],
    counts: list[int],
    tables: np.ndarray,
) -> np.ndarray:
    """What the model says next: [num_seqs, largest count] int64, of which row i has counts[i] tokens, one at least.
    Computed and in the model's cache are then the known tokens, and all of these but the last.

    Args:
        prepared: of prepared_run().
        known: tokens of each sequence that have no keys yet, from position starts[i] to its last one.
        tables: [num_seqs, max_blocks] int32, contiguous: the blocks that hold all of this.
    """
    decoder, head, ops = model.model, model.lm_head, cast(OneCallOps, model.model.ops)
    embedding, kernel = decoder.embed_tokens.weight, cast(CompiledLinear, head.method).kernel(head)
    most_known, most = max(map(len, known)), max(counts)
    tokens = np.array([ids + [0] * (most_known - len(ids)) for ids in known], np.int64)
    arrays = [np.array(each, np.int64) for each in ([len(ids) for ids in known], starts, counts)]
    guesses = np.zeros((len(known), most), np.int64)
    pointers = [array.ctypes.data for array in (*arrays, tokens, tables, guesses)]
    run = Run(
        addressof(prepared.shape), addressof(prepared.layers), _address(prepared.run),
        _address(function(f"linear_{kernel}")), embedding.data_ptr(), head.weight.data_ptr(),
        decoder.norm.weight.data_ptr(), decoder.rotary.cos_sin.data_ptr(), len(prepared.layers), head.out_features,
        prepared.scratch, len(known), most_known, most, tables.shape[1], *pointers,
    )  # fmt: skip
    name = f"guess_{DTYPE_NAMES[ops.flowing]}_{DTYPE_NAMES[embedding.dtype]}"
    getattr(library(), name)(byref(run))
    return guesses


def _address(compiled: Any) -> int | None:
    return cast_pointer(compiled, c_void_p).value
