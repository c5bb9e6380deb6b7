"""The configuration's fields that M2 brings: which request goes first."""

from __future__ import annotations

from typing import Any

import pytest

from folovllm import SchedulerConfig
from tests.m0.test_config import assert_refused

REFUSED: list[tuple[type[Any], dict[str, Any], str]] = [
    (SchedulerConfig, {"policy": "lifo"}, "policy must be one of 'fcfs', 'priority', got 'lifo'"),
]


@pytest.mark.parametrize(("config", "kwargs", "message"), REFUSED, ids=lambda value: str(value)[:60])
def test_wrong_value_is_refused_in_these_words(config: type[Any], kwargs: dict[str, Any], message: str) -> None:
    assert_refused(config, kwargs, message)
