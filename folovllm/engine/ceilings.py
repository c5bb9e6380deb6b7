"""How much one request may ask for, whatever it is: the engine's owner decides, not the request.

A log-probability costs a dict entry per token, a sequence costs rows, blocks and text. Without a ceiling, one request
could hold up all the others.

vLLM: config/model.py (max_logprobs), envs.py (VLLM_MAX_N_SEQUENCES)
"""

from __future__ import annotations

from folovllm.config import EngineConfig
from folovllm.sampling_params import SamplingParams

NO_CEILING = -1


def check_ceilings(params: SamplingParams, config: EngineConfig) -> None:
    """Raises ValueError: n or best_of is above max_n, logprobs or prompt_logprobs above max_logprobs."""
    for ceiling, most, names in (
        ("max_n", config.scheduler_config.max_n, ("n", "best_of")),
        ("max_logprobs", config.model_config.max_logprobs, ("logprobs", "prompt_logprobs")),
    ):
        for name in names:
            value = getattr(params, name)
            if value is not None and most != NO_CEILING and value > most:
                raise ValueError(
                    f"{name} must be at most {most}, got {value}; raise {ceiling}, or {NO_CEILING} for any"
                )
