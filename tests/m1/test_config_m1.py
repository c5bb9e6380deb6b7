"""The configuration's fields that M1 brings: what one request may ask for."""

from __future__ import annotations

from typing import Any

import pytest

from folovllm import ModelConfig, SchedulerConfig
from tests.m0.test_config import assert_refused

REFUSED: list[tuple[type[Any], dict[str, Any], str]] = [
    (ModelConfig, {"max_logprobs": -2}, "max_logprobs must be at least -1, got -2; -1 allows any number"),
    (SchedulerConfig, {"max_n": 0}, "max_n must be positive, got 0; -1 allows any number"),
]


@pytest.mark.parametrize(("config", "kwargs", "message"), REFUSED, ids=lambda value: str(value)[:60])
def test_wrong_value_is_refused_in_these_words(config: type[Any], kwargs: dict[str, Any], message: str) -> None:
    assert_refused(config, kwargs, message)
