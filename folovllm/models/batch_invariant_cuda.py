"""A model whose rows are bit for bit the same in any company, on CUDA: nothing needs to be found out, unlike on a CPU.

    products                 tiles of our own that do not depend on the number of rows    layers/kernels/matmul.py
    norms, RoPE, SwiGLU      the fused kernels as they are: a row, or a number, is computed by itself

A class that is not known is refused by name.

vLLM: model_executor/determinism/batch_invariant.py
"""

from __future__ import annotations

import torch
from torch import nn

from folovllm.attention.layer import Attention
from folovllm.layers.embedding import Embedding, LMHead
from folovllm.layers.linear import Linear
from folovllm.layers.norm import QKNorm
from folovllm.layers.rotary import RotaryEmbedding
from folovllm.models.decoder import Decoder, DecoderForCausalLM, DecoderLayer
from folovllm.models.fused import FusedMLP, FusedRMSNorm, FusedSelfAttention


class TiledLinear(Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from folovllm.layers.kernels.matmul import linear  # loads Triton

        return linear(x, self.weight, self.bias)


class TiledLMHead(TiledLinear, LMHead):
    pass


TILED: dict[type[Linear], type[TiledLinear]] = {Linear: TiledLinear, LMHead: TiledLMHead}
# FusedSelfAttention normalises its heads itself, with QKNorm's weight.
ROW_BY_ROW: tuple[type[nn.Module], ...] = (
    Embedding, FusedRMSNorm, QKNorm, RotaryEmbedding, Attention, FusedSelfAttention, FusedMLP, DecoderLayer, Decoder,
    nn.ModuleList,
)  # fmt: skip


def make_batch_invariant_cuda(model: DecoderForCausalLM) -> None:
    """Swap the classes of the products of a model that has been fused.

    Raises:
        ValueError: a module is of a class that is not known to keep its rows' bits.
    """
    for name, module in model.named_modules():
        if type(module) in TILED:
            module.__class__ = TILED[type(module)]  # type: ignore[index]
        elif type(module) not in ROW_BY_ROW and module is not model:
            raise ValueError(
                f"batch_invariant=True cannot be kept by {type(module).__name__} ({name}): its rows may depend on one "
                f"another; leave batch_invariant out"
            )
