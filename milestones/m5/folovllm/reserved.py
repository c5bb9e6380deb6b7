"""Configuration fields that wait for their milestone.

The dataclasses in config.py have every field from the start, checked; a field that nothing reads yet must not be
accepted in silence. This table shrinks as the engine grows.
"""

from __future__ import annotations

import dataclasses

from folovllm.config import EngineConfig

RESERVED = {
    "enable_prefix_caching": "M6 (prefix caching)",
}


def refuse_reserved_fields(config: EngineConfig) -> None:
    """Raises NotImplementedError for a field of RESERVED that is not at its default, naming the milestone."""
    for part in (config.model_config, config.cache_config, config.scheduler_config):
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if field.name in RESERVED and value != field.default:
                raise NotImplementedError(
                    f"{field.name} is not supported yet, got {value!r}: it comes with {RESERVED[field.name]}"
                )
