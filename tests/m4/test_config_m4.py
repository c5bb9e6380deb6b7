"""The configuration's fields that M4 brings: CUDA graphs, asynchronous scheduling."""

from __future__ import annotations

from typing import Any

import pytest

from folovllm import ModelConfig, SchedulerConfig
from tests.m0.test_config import assert_refused

REFUSED: list[tuple[type[Any], dict[str, Any], str]] = [
    (ModelConfig, {"enforce_eager": None}, "enforce_eager must be True or False, got None (NoneType)"),
    (SchedulerConfig, {"async_scheduling": "auto"}, "async_scheduling must be True or False, got 'auto'"),
]


@pytest.mark.parametrize(("config", "kwargs", "message"), REFUSED, ids=lambda value: str(value)[:60])
def test_wrong_value_is_refused_in_these_words(config: type[Any], kwargs: dict[str, Any], message: str) -> None:
    assert_refused(config, kwargs, message)
