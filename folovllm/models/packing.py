"""Linear layers with their weights in the layout of the CPU's fastest product, swapped in once a model is loaded.

    Linear, LMHead  ──▶  PackedLinear, PackedLMHead     the same modules, of another class (layers/linear_kernels.py)

A tied head packs a second copy of the embedding's weight: for Qwen3-0.6B, 26% of the weights. It is the one place where
memory is spent for speed. Every other layer drops its plain weight before the next one is packed.

FBGEMM reorders a weight on a single core. For a large bfloat16 model that takes seconds, so several weights are packed
at a time. oneDNN divides each weight among all cores by itself, and more threads would only slow it down.

    one thread     |---- head ----|- layer 0 -|- layer 1 -|- layer 2 -|  …
    two            |---- head ----|- layer 3 -|  …
                   |- layer 0 -|- layer 1 -|- layer 2 -|  …               largest first, so that both end together

vLLM: model_executor/layers/utils.py (dispatch_cpu_unquantized_gemm)
"""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import torch

from folovllm.layers.embedding import Embedding, LMHead
from folovllm.layers.linear import Linear
from folovllm.layers.linear_kernels import PackedLinear, PackedLMHead
from folovllm.layers.norm import RMSNorm
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.utils.devices import cpu_has_bf16_units, release_freed_memory

# Only modules of exactly these classes are packed: a subclass may compute something else, and is left alone.
PACKED: dict[type[Linear], type[PackedLinear]] = {Linear: PackedLinear, LMHead: PackedLMHead}


def pack_in_threads(model: DecoderForCausalLM, num_threads: int | None = None) -> None:
    """Pack the linear layers of a loaded model: with FBGEMM, as many at a time as torch has threads.

    While they are packed, memory holds both forms of that many layers. On a GPU there is nothing to pack.
    """
    weight = model.lm_head.weight
    if weight.device.type != "cpu":
        return
    if weight.dtype != torch.bfloat16 or cpu_has_bf16_units():
        pack_linear_layers(model)
        return
    layers = _layers_to_pack(model)
    layers.sort(key=lambda layer: layer.weight.numel(), reverse=True)
    # The filters of warnings belong to the whole process. Kernels set and restore them around each call, and threads do
    # so in any order: this block puts them back as they were.
    with warnings.catch_warnings(), ThreadPoolExecutor(num_threads or torch.get_num_threads()) as pool:
        warnings.simplefilter("ignore")
        for _ in pool.map(_pack, layers):  # an exception of a thread is raised here
            pass


def pack_linear_layers(model: DecoderForCausalLM) -> None:
    """Let each linear layer reorder its weight for this machine. One at a time, so that memory holds both forms of one
    layer at most."""
    for layer in _layers_to_pack(model):
        _pack(layer)


def _layers_to_pack(model: DecoderForCausalLM) -> list[Linear]:
    return [module for module in model.modules() if isinstance(module, Linear) and type(module) in PACKED]


def _pack(layer: Linear) -> None:
    layer.__class__ = PACKED[type(layer)]
    assert isinstance(layer, PackedLinear)  # for the type checker, which does not follow the line above
    layer.pack()
    release_freed_memory()  # weights of a few MB are freed into the heap, where they would stay


class WideEmbedding(Embedding):
    """An embedding that returns float32 rows, so that everything computed from them is float32."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids).float()


def widen_activations(model: DecoderForCausalLM) -> None:
    """Make the activations between the layers float32, while weights and KV cache stay bfloat16.

    This is for bfloat16 on a CPU without bf16 units; elsewhere it does nothing. Packed products give float32 there
    anyway. In bfloat16 each small operator between them would widen its input and round its output, which a decode step
    feels. Such a model needs packed layers: a plain product takes both of its factors in one dtype only.
    """
    weight = model.lm_head.weight
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16 or cpu_has_bf16_units():
        return
    model.model.embed_tokens.__class__ = WideEmbedding
    for module in model.modules():
        if isinstance(module, RMSNorm):
            module.weight.data = module.weight.data.float()
