"""The configuration's fields that M6 brings: batch invariance, fp8, a budget by use."""

from __future__ import annotations

from typing import Any

import pytest

from folovllm import CacheConfig, ModelConfig, SchedulerConfig
from tests.m0.test_config import assert_refused

REFUSED: list[tuple[type[Any], dict[str, Any], str]] = [
    (ModelConfig, {"batch_invariant": 1}, "batch_invariant must be True or False, got 1 (int)"),
    (CacheConfig, {"kv_cache_dtype": "int4"}, "kv_cache_dtype must be one of 'auto', 'fp8', 'fp8_e4m3'"),
    (SchedulerConfig, {"performance_mode": "fast"}, "performance_mode must be one of 'interactivity', "),
]


@pytest.mark.parametrize(("config", "kwargs", "message"), REFUSED, ids=lambda value: str(value)[:60])
def test_wrong_value_is_refused_in_these_words(config: type[Any], kwargs: dict[str, Any], message: str) -> None:
    assert_refused(config, kwargs, message)
