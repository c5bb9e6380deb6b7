"""A model whose rows are bit for bit the same in any company, on a CPU: batch_invariant=True, below attention.

    products            our own compiled kernel as it is: each number is one chain of sums, in one order, whatever the
                        rows (csrc/linear.cpp)
    norms, RoPE, SwiGLU our own compiled kernels as they are: a row, or a number, is computed by itself

So nothing is exchanged. What torch multiplies is refused: it chooses a kernel by the number of rows, and another kernel
sums in another order. A class that is not known is refused by name.

vLLM: model_executor/determinism/batch_invariant.py
"""

from __future__ import annotations

from torch import nn

from folovllm.attention.layer import Attention
from folovllm.layers.embedding import Embedding
from folovllm.layers.norm import QKNorm
from folovllm.layers.rotary import RotaryEmbedding
from folovllm.models.compiled_decoder import CompiledDecoder
from folovllm.models.decoder import Decoder, DecoderForCausalLM, DecoderLayer
from folovllm.models.fused_compiled import (
    CompiledLinear,
    CompiledLMHead,
    CompiledMLP,
    CompiledRMSNorm,
    CompiledSelfAttention,
    WideEmbedding,
)

# Each row of their results is computed from its own row alone, in an order that is the same in any company.
# CompiledSelfAttention normalises its heads itself, with QKNorm's weight.
ROW_BY_ROW: tuple[type[nn.Module], ...] = (
    Embedding, WideEmbedding, CompiledLinear, CompiledLMHead, CompiledRMSNorm, QKNorm, RotaryEmbedding, Attention,
    CompiledSelfAttention, CompiledMLP, DecoderLayer, Decoder, CompiledDecoder, nn.ModuleList,
)  # fmt: skip


def require_rows_apart(model: DecoderForCausalLM) -> None:
    """Look through a model that runs in the compiled kernels.

    Raises:
        ValueError: a module is of a class that is not known to keep its rows' bits; by name.
    """
    for name, module in model.named_modules():
        if type(module) not in ROW_BY_ROW and module is not model:
            raise ValueError(
                f"batch_invariant=True cannot be kept by {type(module).__name__} ({name}): its rows may depend on one "
                f"another; leave batch_invariant out"
            )
