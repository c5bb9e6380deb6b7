"""Configuration fields that wait for their milestone.

The dataclasses in config.py have every field from the start, checked, and say from which milestone on it is read. A
field that nothing reads yet must not be accepted in silence.

vLLM: none
"""

from __future__ import annotations

import dataclasses

from folovllm import milestone
from folovllm.config import EngineConfig


def refuse_reserved_fields(config: EngineConfig) -> None:
    """Raises NotImplementedError for a field of a later milestone that is not at its default, naming that milestone."""
    for part in (config.model_config, config.cache_config, config.scheduler_config):
        for field in dataclasses.fields(part):
            value, since = getattr(part, field.name), field.metadata.get("since", 0)
            if since > milestone.MILESTONE and value != field.default:
                comes = f"it comes with M{since} ({field.metadata['idea']})"
                raise NotImplementedError(f"{field.name} is not supported yet, got {value!r}: {comes}")
