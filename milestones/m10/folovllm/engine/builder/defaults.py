"""What the entry points choose where the user does not: which model, and what is on by default.

The defaults of the dataclasses in config.py stay as they are: code that builds those gets what they say.

vLLM: engine/arg_utils.py
"""

from __future__ import annotations

from typing import Any

from folovllm.config import EngineConfig

DEFAULTS: dict[str, Any] = {"enable_chunked_prefill": True, "enable_prefix_caching": True}


def config_for_llm(model: str | None, **kwargs: Any) -> EngineConfig:
    """`model` None is the embedded one; the keywords are fields of the configuration's layers.

    Raises:
        TypeError: an unknown keyword. ValueError: a value out of its range.
    """
    return EngineConfig.from_kwargs(model=model, **{**DEFAULTS, **kwargs})
