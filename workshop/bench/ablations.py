"""An engine without one of the things that make it fast: what is each of them worth?

    graphs       no CUDA graphs: every step is launched kernel by kernel. On a CPU: layers are called one by one
    ahead        no running ahead: a step is launched when the tokens of the one before are known
    attention    paged_torch, attention by torch's operators
    norm         residual and norm by torch's operators
    rotary       norm of heads and rotation by torch's operators
    silu         SwiGLU by torch's operators
    sampling     the draw by torch's operators

What is left out is left out where it would have been chosen, when an engine is built. So the rest of the engine is the
very one that users run.

vLLM: none; its switches are --enforce-eager, --no-async-scheduling, --attention-backend and --compilation-config
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from folovllm.config import EngineConfig
from folovllm.engine.llm_engine import LLMEngine
from folovllm.engine.parts import Parts, choose_parts, select_ops
from folovllm.layers.ops import LayerOps
from folovllm.worker.model_runner import current_device

# By an option of the engine.
OPTIONS: dict[str, dict[str, Any]] = {"graphs": {"enforce_eager": True}, "ahead": {"async_scheduling": False}}
# By the operation of LayerOps that is then torch's.
OPERATIONS = {"norm": "rms_norm", "rotary": "norm_rotary", "silu": "silu_mul"}
ABLATIONS = ["graphs", "ahead", "attention", *OPERATIONS, "sampling"]


def require_ablations(names: Sequence[str]) -> None:
    """Raises ValueError for a name that there is not."""
    for name in names:
        if name not in ABLATIONS:
            raise ValueError(f"without must be of {', '.join(ABLATIONS)}, got {name!r}")


def left_out(names: Sequence[str], device: torch.device) -> dict[str, Any]:
    """What an engine has to be given so that it has none of `names`: settings by their names, and LLMEngine's `choose`.

    "sampling" is left out of the finished engine, by leave_out_draw().
    """
    require_ablations(names)
    options: dict[str, Any] = {}
    for name in names:
        options |= OPTIONS.get(name, {})
    if "attention" in names:
        options["attention_backend"] = "paged_torch"
    if plain := [OPERATIONS[name] for name in names if name in OPERATIONS]:
        options["choose"] = partial(_choose_without, plain)
    return options


def _choose_without(
    operations: Sequence[str],
    config: EngineConfig,
    hf_config: Any,
    dtype: torch.dtype,
    device: torch.device,
    *rest: Any,
) -> Parts:
    """choose_parts(), but these operations are torch's, so that the layers are called one by one."""
    parts = choose_parts(config, hf_config, dtype, device, *rest)
    ops = select_ops(dtype, device, one_by_one=True, invariant=config.model_config.batch_invariant)
    for name in operations:
        setattr(ops, name, getattr(LayerOps(), name))  # a field of a dataclass; nothing has been built with it yet
    return replace(parts, ops=ops)


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
