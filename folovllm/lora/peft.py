"""PEFT's folder: adapter_config.json says how much each pair counts, adapter_model.safetensors has the pairs.

    base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight   [rank, inputs]
    base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight   [outputs, rank]      W + alpha / rank * B A

Which matrices have a pair is what the tensors say. What would be computed wrongly is refused by its field's name.

vLLM: lora/peft_helper.py, lora/lora_model.py (from_local_checkpoint)
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load

from folovllm.errors import ModelLoadError
from folovllm.lora.request import LoRAModel, LoRARequest, Pair

PREFIX = "base_model.model."
SEVEN = "q_proj, k_proj, v_proj and o_proj of an attention, or gate_proj, up_proj and down_proj"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
DAMAGE = OSError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, re.error, SafetensorError
# What a plain adapter says of each; None always stands for that.
PLAIN: dict[str, Any] = {
    "peft_type": "LORA", "bias": "none", "use_dora": False, "modules_to_save": [], "fan_in_fan_out": False,
    "lora_bias": False, "layer_replication": [], "trainable_token_indices": [], "target_parameters": [],
    "alora_invocation_tokens": [], "use_qalora": False, "use_bdlora": False, "arrow_config": {},
}  # fmt: skip


def read_adapter(request: LoRARequest, modules: dict[str, tuple[int, int]], max_rank: int) -> LoRAModel:
    """modules: (inputs, outputs) of each of the model's matrices that may have a pair, by name.

    Raises:
        ModelLoadError: there is no such folder, it is damaged, of another model, or has what is not computed here.
    """
    folder = Path(request.lora_path)
    try:
        config_bytes, weights_bytes = ((folder / name).read_bytes() for name in (CONFIG, WEIGHTS))
        tensors, config = load(weights_bytes), json.loads(config_bytes)
        for field, plain in PLAIN.items():
            if (value := config.get(field)) not in (None, plain):
                raise ModelLoadError(f"{field} must be {plain!r}, got {value!r}: it is not computed here")
        root = math.sqrt if config.get("use_rslora") else float
        pairs: dict[str, Pair] = {}
        for module in dict.fromkeys(map(_module_of, sorted(tensors))):
            rank, alpha = _of(module, config, "r", "rank_pattern"), _of(module, config, "lora_alpha", "alpha_pattern")
            a, b = (tensors.get(f"{PREFIX}{module}.lora_{half}.weight") for half in "AB")
            if module not in modules:  # of a model without a head, whose names begin with its layers
                module = f"model.{module}"
            if module not in modules:
                raise ModelLoadError(f"{module} must be one of the model's layers, {SEVEN} of an MLP that is no expert")
            size, outs = modules[module]
            shapes = [None if half is None else (*half.shape,) for half in (a, b)]
            if shapes != [(rank, size), (outs, rank)]:
                raise ModelLoadError(f"{module} must have A {(rank, size)} and B {(outs, rank)}, got {shapes}")
            if rank > max_rank:
                raise ModelLoadError(f"{module} has rank {rank}, and max_lora_rank is {max_rank}: raise it")
            pairs[module] = Pair(a, b, alpha / root(rank))
    except FileNotFoundError as error:
        must = f"must be a folder with {CONFIG} and {WEIGHTS}, as PEFT's save_pretrained() writes them"
        raise ModelLoadError(f"lora_path {must}, got {str(folder)!r}: {error}") from None
    except ModelLoadError as error:
        raise ModelLoadError(f"lora_path {str(folder)!r}: {error}") from None
    except DAMAGE as error:
        raise ModelLoadError(f"lora_path {str(folder)!r} cannot be read: {error!r}") from error
    return LoRAModel(request.lora_name, hashlib.sha256(config_bytes + weights_bytes).digest(), pairs)


def _module_of(name: str) -> str:
    found = re.fullmatch(rf"{re.escape(PREFIX)}(.+)\.lora_[AB]\.weight", name)
    if found is None:
        raise ModelLoadError(f"{name} must be a matrix lora_A or lora_B: nothing else is added to a model here")
    return found[1]


def _of(module: str, config: dict[str, Any], field: str, pattern: str) -> Any:
    """A field's value for one matrix: that of the first pattern that ends its name, as in PEFT, or of all."""
    own = (value for end, value in (config.get(pattern) or {}).items() if re.match(rf"(.*\.)?({end})$", module))
    return next(own, config[field])
