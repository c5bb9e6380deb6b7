"""Linear layers with their weights in the layout of the CPU's fastest product, swapped in once a model is loaded.

    Linear, LMHead  ──▶  PackedLinear, PackedLMHead     the same modules, of another class (layers/linear_kernels.py)

A tied head packs a second copy of the embedding's weight, the one place where memory is spent for speed: for Qwen3-0.6B
26% of the weights. Every other layer drops its plain weight before the next one is packed.

FBGEMM reorders a weight on a single core: for a large bfloat16 model that takes seconds, so several weights are packed
at a time. oneDNN divides each weight among all cores by itself; there, threads of ours would only be in its way.

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

# Exact classes: a subclass of somebody's own computes something else, and is left alone.
PACKED: dict[type[Linear], type[PackedLinear]] = {Linear: PackedLinear, LMHead: PackedLMHead}


def pack_in_threads(model: DecoderForCausalLM, num_threads: int | None = None) -> None:
    """Pack the linear layers of a loaded model: where FBGEMM does it, as many at a time as torch has threads.

    The peak in memory is that many layers above the sum. On a GPU there is nothing to pack.
    """
    weight = model.lm_head.weight
    if weight.device.type != "cpu":
        return
    if weight.dtype != torch.bfloat16 or cpu_has_bf16_units():
        pack_linear_layers(model)
        return
    layers = _layers_to_pack(model)
    layers.sort(key=lambda layer: layer.weight.numel(), reverse=True)
    # The filters of warnings belong to the whole process: what the kernels set and restore around each call must end as
    # it was, in whatever order the threads do so.
    with warnings.catch_warnings(), ThreadPoolExecutor(num_threads or torch.get_num_threads()) as pool:
        warnings.simplefilter("ignore")
        for _ in pool.map(_pack, layers):  # raises what a thread has raised
            pass


def pack_linear_layers(model: DecoderForCausalLM) -> None:
    """Let each linear layer reorder its weight for this machine, one at a time: the peak is one layer above the sum."""
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
    """Its rows come out in float32, and so does all that is computed from them."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids).float()


def widen_activations(model: DecoderForCausalLM) -> None:
    """Let what flows between the layers be float32, while weights and KV cache stay bfloat16.

    For bfloat16 on a CPU without bf16 units, and nothing elsewhere: packed products come out in float32 there anyway,
    and each small operator between them would widen its bfloat16 input and round its output, at a cost that shows in a
    decode step. Such a model computes with packed layers only: plain ones want both sides in one dtype.
    """
    weight = model.lm_head.weight
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16 or cpu_has_bf16_units():
        return
    model.model.embed_tokens.__class__ = WideEmbedding
    for module in model.modules():
        if isinstance(module, RMSNorm):
            module.weight.data = module.weight.data.float()
