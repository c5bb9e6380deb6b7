"""The configuration's fields that M3 brings: blocks, preemption, a backend by name."""

from __future__ import annotations

from typing import Any

import pytest

from folovllm import CacheConfig, ModelConfig, SchedulerConfig
from tests.m0.test_config import assert_refused

REFUSED: list[tuple[type[Any], dict[str, Any], str]] = [
    (ModelConfig, {"attention_backend": ""}, "attention_backend must not be empty, got ''"),
    (ModelConfig, {"attention_backend": 1}, "attention_backend must be a string, got 1 (int)"),
    (CacheConfig, {"num_kv_blocks": 0}, "num_kv_blocks must be positive, got 0"),
    (CacheConfig, {"num_kv_blocks": 1.0}, "num_kv_blocks must be an integer, got 1.0 (float)"),
    (
        SchedulerConfig,
        {"preemption_mode": "swop"},
        "preemption_mode must be one of 'auto', 'recompute', 'swap', got 'swop'; did you mean 'swap'?",
    ),
]


@pytest.mark.parametrize(("config", "kwargs", "message"), REFUSED, ids=lambda value: str(value)[:60])
def test_wrong_value_is_refused_in_these_words(config: type[Any], kwargs: dict[str, Any], message: str) -> None:
    assert_refused(config, kwargs, message)
