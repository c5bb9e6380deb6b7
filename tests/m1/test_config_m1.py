"""The configuration's fields that M1 brings: what one request may ask for; and what ends a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from folovllm import ModelConfig, SchedulerConfig
from folovllm.model_loader.hf_config import load_generation_config
from tests.helpers import make_hf_folder
from tests.m0.test_config import assert_refused

REFUSED: list[tuple[type[Any], dict[str, Any], str]] = [
    (ModelConfig, {"max_logprobs": -2}, "max_logprobs must be at least -1, got -2; -1 allows any number"),
    (SchedulerConfig, {"max_n": 0}, "max_n must be positive, got 0; -1 allows any number"),
]


@pytest.mark.parametrize(("config", "kwargs", "message"), REFUSED, ids=lambda value: str(value)[:60])
def test_wrong_value_is_refused_in_these_words(config: type[Any], kwargs: dict[str, Any], message: str) -> None:
    assert_refused(config, kwargs, message)


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ([7, 8], 9, {7, 8}),  # what the makers say about generating wins
        (7, 9, {7}),
        (None, 9, {9}),
        (None, [9, 10], {9, 10}),
        (None, None, set()),
        ("no file", 9, {9}),
    ],
)
def test_eos_ids(generation: object, config: object, expected: set[int], tmp_path: Path) -> None:
    made = make_hf_folder(tmp_path, "qwen3")
    (made / "generation_config.json").unlink()
    if generation != "no file":
        (made / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    settings = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**settings, "eos_token_id": config}))
    assert load_generation_config(ModelConfig(str(made))).eos_token_ids == expected
