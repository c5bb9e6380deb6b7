"""When an engine starts on a GPU, each of our kernels computes a small case there, and so do torch's operators.

A GPU, driver or Triton that was never tried may refuse a kernel, or compute something else. A warning then names it,
and torch takes its place, slower and right. The cases have the model's own sizes and dtypes, so the engine needs what
they compile. FOLOVLLM_CHECK_KERNELS=no leaves them out. A kernel that reads what is not there ends CUDA's context, and
the process with it.

vLLM: none
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.config import EngineConfig
from folovllm.distributed.parallel_state import GroupCoordinator
from folovllm.engine.builder.components import Components
from folovllm.engine.builder.kernel_cases import Case, make_cases
from folovllm.engine.builder.kv_cache_dtype import FP8, INT8
from folovllm.layers.linear import PLAIN
from folovllm.layers.lora import LoRAWeights
from folovllm.layers.ops import LayerOps
from folovllm.layers.quantization.cuda import plain_method
from folovllm.layers.quantization.linear import QuantizedLinears
from folovllm.models.registry import ModelSpec
from folovllm.utils.logging import init_logger

logger = init_logger(__name__)
TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}  # |ours - torch's| / |torch's|


def check_kernels(
    chosen: Components, config: EngineConfig, spec: ModelSpec, dtype: torch.dtype, device: torch.device,
    group: GroupCoordinator | None = None,
) -> Components:  # fmt: skip
    """`chosen`, without the kernels that are wrong on `device`, or on that of another rank of `group`: all check, and
    all leave out the same, or they would not make the same sums.

    Raises:
        ValueError: a kernel is wrong, and torch does not compute what was asked for.
    """
    if device.type != "cuda" or os.environ.get("FOLOVLLM_CHECK_KERNELS") == "no":
        return chosen
    generator = torch.Generator().manual_seed(0)

    def make(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(device, dtype)

    linear = chosen.ops.linear
    linear = QuantizedLinears(linear.scheme, plain_method, PLAIN) if isinstance(linear, QuantizedLinears) else PLAIN
    backends = {torch.uint8: FP8["paged_torch"], torch.int8: INT8["paged_torch"]}
    backend = backends.get(chosen.cache_dtype, PagedTorchBackend)
    plain = replace(chosen, backend=backend, ops=LayerOps(linear), lora=LoRAWeights, draws=False, graphs=False)
    for kernel, case in make_cases(make, chosen, config, spec).items():
        why = _find_fault(case, chosen, plain, TOLERANCE[dtype])
        if all([why is None] if group is None else group.fewest([why is None])):
            continue
        why, asked = why or "is no good on another rank", None
        if kernel == "graphs":
            chosen = replace(chosen, graphs=False)
            logger.warning("steps are launched kernel by kernel, which is slower: a CUDA graph's replay %s", why)
            continue
        why = f"the kernel {kernel!r} {why}"
        if kernel == "draw":
            without = replace(chosen, draws=False)
        elif kernel == "lora":  # torch asks the host which rows have which adapter
            without = replace(chosen, lora=LoRAWeights, graphs=False)
        elif hasattr(chosen.ops, kernel):
            # Without their kernel, how many rows each expert has must be known on the host.
            graphs = chosen.graphs and kernel != "experts"
            torchs: dict[str, Any] = {kernel: getattr(plain.ops, kernel, None)}
            ops = replace(chosen.ops, **torchs)
            without = replace(chosen, ops=ops, graphs=graphs)
        else:
            graphs = chosen.graphs and plain.backend.supports_cuda_graphs
            without = replace(chosen, backend=plain.backend, graphs=graphs)
            asked = "attention_backend" if config.model_config.attention_backend == chosen.backend.name else None
        if asked := "batch_invariant" if config.model_config.batch_invariant else asked:
            raise ValueError(f"{asked} cannot be what was asked for on {device}: {why}; leave {asked} out")
        chosen = without
        wider = kernel == "linear" and isinstance(linear, QuantizedLinears)
        also = f", and quantised weights take {8 * dtype.itemsize} bits" if wider else ""
        logger.warning("torch takes the place of a kernel, which is slower%s: %s", also, why)
    return chosen


def _find_fault(case: Case, ours: Components, plain: Components, most: float) -> str | None:
    try:
        got, want = case(ours).double(), case(plain).double()
        off = float((got - want).norm() / want.norm())
    except Exception as error:  # compilers and drivers raise what they like
        return f"fails with {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return None if off <= most else f"is off by {off:.1e} of the right result"  # NaN is, too
