"""An engine without one of the things that make it fast: what is each of them worth?

    graphs       no CUDA graphs: every step is launched kernel by kernel. On a CPU: layers are called one by one
    ahead        no running ahead: a step is launched when the tokens of the one before are known
    attention    another backend. On a GPU torch_varlen, whose prefill is torch's and whose decode is ours; on a CPU
                 paged_torch
    norm         residual and norm by torch's operators
    rotary       norm of heads and rotation by torch's operators
    silu         SwiGLU by torch's operators
    sampling     the draw by torch's operators

What is left out is left out of an engine that is built, by the table from which it would have taken it. So the rest of
the engine is the very one that users run.

vLLM: none; its switches are --enforce-eager, --no-async-scheduling, --attention-backend and --compilation-config
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from folovllm.engine.llm_engine import LLMEngine
from folovllm.layers.norm import RMSNorm
from folovllm.models.decoder import MLP, SelfAttention
from folovllm.utils.current_device import current_device

# By an option of the engine.
OPTIONS: dict[str, dict[str, Any]] = {"graphs": {"enforce_eager": True}, "ahead": {"async_scheduling": False}}
# By the module that is then not exchanged for a fused one.
MODULES: dict[str, type[nn.Module]] = {"norm": RMSNorm, "rotary": SelfAttention, "silu": MLP}
BACKENDS = {"cuda": "torch_varlen", "cpu": "paged_torch"}
ABLATIONS = ["graphs", "ahead", "attention", *MODULES, "sampling"]


def require_ablations(names: Sequence[str]) -> None:
    """Raises ValueError for a name that there is not."""
    for name in names:
        if name not in ABLATIONS:
            raise ValueError(f"without must be of {', '.join(ABLATIONS)}, got {name!r}")


@contextmanager
def left_out(names: Sequence[str], device: torch.device) -> Iterator[dict[str, Any]]:
    """Yields options for an engine. One that is built with them, inside, has none of `names`.

    "sampling" is left out of the finished engine, by leave_out_draw().
    """
    require_ablations(names)
    options: dict[str, Any] = {}
    for name in names:
        options |= OPTIONS.get(name, {})
    if "attention" in names:
        options["attention_backend"] = BACKENDS[device.type]
    table = _table(device)
    kept = dict(table)
    try:
        for name in names:
            if name in MODULES:
                table.pop(MODULES[name], None)
        yield options
    finally:
        table.clear()
        table.update(kept)


def _table(device: torch.device) -> dict[type[nn.Module], type[nn.Module]]:
    """From a module's class to the one that it is exchanged for."""
    if device.type == "cuda":
        from folovllm.models.fused import FUSED  # loads Triton

        return FUSED
    from folovllm.models.fused_compiled import COMPILED

    return COMPILED


def leave_out_draw(engine: LLMEngine) -> None:
    """Let an engine that has no request yet draw by torch's operators, behind its graphs.

    Raises:
        ValueError: it does so anyway.
    """
    sampling, graphs = engine.runner.sampling, engine.runner.graphs
    if not sampling.uses_kernel:
        raise ValueError("without must name what this engine has, got 'sampling': no kernel of ours draws its tokens")
    sampling.uses_kernel = False
    if graphs is not None:  # which would go on drawing
        graphs.draws = False
        with current_device(engine.device):
            graphs.record()
