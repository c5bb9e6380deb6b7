"""The configuration's fields that M5 brings: chunks."""

from __future__ import annotations

from typing import Any

import pytest

from folovllm import SchedulerConfig
from tests.m0.test_config import assert_refused

REFUSED: list[tuple[type[Any], dict[str, Any], str]] = [
    (
        SchedulerConfig,
        {"long_prefill_token_threshold": -1},
        "long_prefill_token_threshold must be non-negative, got -1",
    ),
    (SchedulerConfig, {"max_num_partial_prefills": 0}, "max_num_partial_prefills must be positive, got 0"),
]


@pytest.mark.parametrize(("config", "kwargs", "message"), REFUSED, ids=lambda value: str(value)[:60])
def test_wrong_value_is_refused_in_these_words(config: type[Any], kwargs: dict[str, Any], message: str) -> None:
    assert_refused(config, kwargs, message)
