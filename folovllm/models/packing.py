"""Packing a model's linear layers in several threads, where the kernel's own packing uses one.

FBGEMM reorders a weight on a single core: for a large bfloat16 model that takes seconds.
oneDNN divides each weight among all cores by itself; there, threads of ours would only be in its way.

    one thread     |---- head ----|- layer 0 -|- layer 1 -|- layer 2 -|  …
    two            |---- head ----|- layer 3 -|  …
                   |- layer 0 -|- layer 1 -|- layer 2 -|  …               largest first, so that both end together

vLLM: none
"""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import torch

from folovllm.layers.linear import Linear
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.models.weights import pack_linear_layers
from folovllm.utils.devices import cpu_has_bf16_units, release_freed_memory


def pack_in_threads(model: DecoderForCausalLM, num_threads: int | None = None) -> None:
    """Pack as pack_linear_layers does, with as many weights at a time as torch has threads, if FBGEMM does it.

    The peak is that many layers above the sum.
    """
    weight = model.lm_head.weight
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16 or cpu_has_bf16_units():
        pack_linear_layers(model)
        return

    def pack(layer: Linear) -> None:
        layer.pack()
        release_freed_memory()

    layers = [module for module in model.modules() if isinstance(module, Linear)]
    layers.sort(key=lambda layer: layer.weight.numel(), reverse=True)
    # The filters of warnings belong to the whole process: what the kernels set and restore around each call must end as
    # it was, in whatever order the threads do so.
    with warnings.catch_warnings(), ThreadPoolExecutor(num_threads or torch.get_num_threads()) as pool:
        warnings.simplefilter("ignore")
        for _ in pool.map(pack, layers):  # raises what a thread has raised
            pass
