"""The four configuration layers: defaults, what each field refuses and in which words, and the builder."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from folovllm import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from folovllm.config import EMBEDDED_MODEL

NAN, INF = float("nan"), float("inf")

REFUSED: list[tuple[type[Any], dict[str, Any], str]] = [
    (ModelConfig, {"model": ""}, "model must not be empty, got ''"),
    (ModelConfig, {"model": 3}, "model must be a string, got 3 (int)"),
    (ModelConfig, {"tokenizer": ""}, "tokenizer must not be empty, got ''"),
    (ModelConfig, {"tokenizer_mode": "fast"}, "tokenizer_mode must be one of 'auto', 'slow', got 'fast'"),
    (ModelConfig, {"trust_remote_code": 1}, "trust_remote_code must be True or False, got 1 (int)"),
    (
        ModelConfig,
        {"dtype": "float23"},
        "dtype must be one of 'auto', 'float32', 'float', 'bfloat16', 'float16', 'half', got 'float23'",
    ),
    (ModelConfig, {"dtype": torch.int8}, "dtype must be one of "),
    (ModelConfig, {"max_model_len": 0}, "max_model_len must be positive, got 0"),
    (ModelConfig, {"max_model_len": True}, "max_model_len must be an integer, got True (bool)"),
    (ModelConfig, {"seed": -1}, "seed must be non-negative, got -1"),
    (ModelConfig, {"seed": 2**63}, "seed must be in [0, 9223372036854775807], got 9223372036854775808"),
    (ModelConfig, {"seed": None}, "seed must be an integer, got None (NoneType)"),
    (ModelConfig, {"device": "gpu"}, "device must be 'cpu', 'cuda' or 'cuda:<index>', got 'gpu'; None picks one"),
    (ModelConfig, {"device": "cuda:x"}, "device must be 'cpu', 'cuda' or 'cuda:<index>', got 'cuda:x'"),
    (
        ModelConfig,
        {"load_format": "dumy"},
        "load_format must be one of 'auto', 'dummy', got 'dumy'; did you mean 'dummy'?",
    ),
    (ModelConfig, {"skip_tokenizer_init": "no"}, "skip_tokenizer_init must be True or False, got 'no' (str)"),
    (CacheConfig, {"block_size": 0}, "block_size must be positive, got 0"),
    (CacheConfig, {"block_size": True}, "block_size must be an integer, got True (bool)"),
    (CacheConfig, {"gpu_memory_utilization": 1.5}, "gpu_memory_utilization must be in (0, 1], got 1.5"),
    (CacheConfig, {"gpu_memory_utilization": 0}, "gpu_memory_utilization must be in (0, 1], got 0"),
    (CacheConfig, {"gpu_memory_utilization": NAN}, "gpu_memory_utilization must be a finite number, got nan"),
    (CacheConfig, {"swap_space": -1}, "swap_space must be non-negative, got -1; it is in GiB, 0 turns swapping off"),
    (CacheConfig, {"swap_space": INF}, "swap_space must be a finite number, got inf"),
    (CacheConfig, {"enable_prefix_caching": 0}, "enable_prefix_caching must be True or False, got 0 (int)"),
    (SchedulerConfig, {"max_num_batched_tokens": 0}, "max_num_batched_tokens must be positive, got 0"),
    (SchedulerConfig, {"max_num_seqs": 0}, "max_num_seqs must be positive, got 0"),
    (SchedulerConfig, {"max_num_seqs": None}, "max_num_seqs must be an integer, got None (NoneType)"),
    (SchedulerConfig, {"max_model_len": -5}, "max_model_len must be positive, got -5"),
    (SchedulerConfig, {"enable_chunked_prefill": "yes"}, "enable_chunked_prefill must be True or False"),
]


LATER = {
    (CacheConfig, "kv_cache_memory_bytes"),
    (CacheConfig, "kv_offloading_path"),
    (CacheConfig, "kv_offloading_path_size"),
    (CacheConfig, "kv_offloading_size"),
    (ModelConfig, "hf_overrides"),
    (ModelConfig, "logits_processors"),
    (ModelConfig, "model_impl"),
    (ModelConfig, "quantization"),
    (ModelConfig, "quantize_head"),
    (ModelConfig, "runner"),
}


def assert_refused(config: type[Any], kwargs: dict[str, Any], message: str) -> None:
    if config is ModelConfig:
        kwargs = {"model": "some/model", **kwargs}
    with pytest.raises(ValueError) as caught:
        config(**kwargs)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(("config", "kwargs", "message"), REFUSED, ids=lambda value: str(value)[:60])
def test_wrong_value_is_refused_in_these_words(config: type[Any], kwargs: dict[str, Any], message: str) -> None:
    assert_refused(config, kwargs, message)


def test_every_field_of_every_layer_has_a_refused_value() -> None:
    """Here, or in the test_config of the milestone that brought it, or (LATER) with a test of its own."""
    found = Path(__file__).parents[1].glob("m*/test_config*.py")
    modules = [import_module(f"tests.{path.parent.name}.{path.stem}") for path in found]
    tried = {(config, name) for module in modules for config, kwargs, _ in module.REFUSED for name in kwargs}
    layers = (ModelConfig, CacheConfig, SchedulerConfig)
    assert [f"{c.__name__}.{f.name}" for c in layers for f in fields(c) if (c, f.name) not in tried | LATER] == []


def test_defaults_are_the_documented_ones() -> None:
    assert CacheConfig() == CacheConfig(
        block_size=16, gpu_memory_utilization=0.9, swap_space=4.0, enable_prefix_caching=False
    )
    assert SchedulerConfig() == SchedulerConfig(
        max_num_batched_tokens=None, max_num_seqs=256, max_model_len=None, enable_chunked_prefill=False
    )


def test_a_model_config_needs_the_models_name_alone() -> None:
    assert ModelConfig("a/b") == ModelConfig(
        model="a/b",
        tokenizer="a/b",
        tokenizer_mode="auto",
        trust_remote_code=False,
        dtype="auto",
        max_model_len=None,
        seed=0,
    )


def test_bounds_themselves_are_allowed() -> None:
    assert CacheConfig(gpu_memory_utilization=1).gpu_memory_utilization == 1
    assert CacheConfig(swap_space=0).swap_space == 0
    assert CacheConfig(block_size=1).block_size == 1
    assert SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=1).max_num_seqs == 1


def test_tokenizer_defaults_to_the_model() -> None:
    assert ModelConfig("a/b").tokenizer == "a/b"
    assert ModelConfig("a/b", tokenizer="c/d").tokenizer == "c/d"


def test_model_may_be_a_path(tmp_path: Path) -> None:
    config = ModelConfig(tmp_path)  # type: ignore[arg-type]
    assert config.model == config.tokenizer == str(tmp_path)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("auto", None),
        ("float32", torch.float32),
        ("float", torch.float32),
        ("bfloat16", torch.bfloat16),
        ("float16", torch.float16),
        ("half", torch.float16),
        (torch.bfloat16, torch.bfloat16),
    ],
)
def test_torch_dtype(given: Any, expected: torch.dtype | None) -> None:
    assert ModelConfig("m", dtype=given).torch_dtype is expected


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1", None])
def test_devices_that_are_names_of_devices(device: str | None) -> None:
    assert ModelConfig("m", device=device).device == device


def test_max_model_len_is_copied_down_to_the_scheduler() -> None:
    config = EngineConfig(ModelConfig("m", max_model_len=100))
    assert config.scheduler_config.max_model_len == 100


def test_max_model_len_given_to_the_scheduler_reaches_the_model() -> None:
    config = EngineConfig(ModelConfig("m"), scheduler_config=SchedulerConfig(max_model_len=100))
    assert config.model_config.max_model_len == 100


def test_what_was_not_given_follows_in_a_copy_too() -> None:
    config = EngineConfig(ModelConfig("m", max_model_len=100))
    for copied in (config, copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        longer = dataclasses.replace(copied.model_config, max_model_len=200, model="other")
        assert longer.tokenizer == "other"
        assert dataclasses.replace(copied, model_config=longer).scheduler_config.max_model_len == 200
    assert dataclasses.replace(ModelConfig("m", tokenizer="m"), model="other").tokenizer == "m"


def test_two_different_max_model_lens_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^max_model_len must be the same in both configs, got 100 in model_con"):
        EngineConfig(ModelConfig("m", max_model_len=100), scheduler_config=SchedulerConfig(max_model_len=99))


def test_one_scheduler_config_serves_two_engines() -> None:
    shared = SchedulerConfig()
    first = EngineConfig(ModelConfig("m", max_model_len=100), scheduler_config=shared)
    second = EngineConfig(ModelConfig("m", max_model_len=200), scheduler_config=shared)
    assert shared.max_model_len is None
    assert first.scheduler_config.max_model_len == 100
    assert second.scheduler_config.max_model_len == 200


def test_engine_config_keeps_the_layers_it_is_given() -> None:
    model, cache = ModelConfig("m", max_model_len=4096), CacheConfig(block_size=32)
    config = EngineConfig(model, cache, SchedulerConfig(max_num_seqs=128))
    assert (config.model_config, config.cache_config) == (model, cache)
    assert config.scheduler_config == SchedulerConfig(max_num_seqs=128, max_model_len=4096)


def test_engine_config_makes_its_own_defaults() -> None:
    a, b = EngineConfig(ModelConfig("m")), EngineConfig(ModelConfig("m"))
    assert a.cache_config is not b.cache_config
    assert a == b
    assert (a.cache_config, a.scheduler_config) == (CacheConfig(), SchedulerConfig())


@pytest.mark.parametrize("layer", ["model_config", "cache_config", "scheduler_config"])
def test_engine_config_refuses_the_wrong_kind_of_layer(layer: str) -> None:
    layers = {"model_config": ModelConfig("m"), layer: {"model": "m"}}
    with pytest.raises(ValueError, match=rf"^{layer} must be a \w+Config, got {{'model': 'm'}}"):
        EngineConfig(**layers)  # type: ignore[arg-type]


def test_builder_sends_each_keyword_to_its_layer() -> None:
    config = EngineConfig.from_kwargs(model="a/b", dtype="half", block_size=32, max_num_seqs=8, max_model_len=64)
    assert (config.model_config.model, config.model_config.dtype) == ("a/b", "half")
    assert config.cache_config.block_size == 32
    assert config.scheduler_config.max_num_seqs == 8
    assert config.model_config.max_model_len == config.scheduler_config.max_model_len == 64


@pytest.mark.parametrize("kwargs", [{}, {"model": None}])
def test_builder_without_a_model_means_the_embedded_one(kwargs: dict[str, Any]) -> None:
    assert EngineConfig.from_kwargs(**kwargs).model_config.model == EMBEDDED_MODEL


def test_builder_names_the_nearest_keyword() -> None:
    with pytest.raises(TypeError, match=r"^unknown keyword 'blocksize'; did you mean 'block_size'\?$"):
        EngineConfig.from_kwargs(blocksize=32)


def test_builder_lists_all_keywords_when_none_is_near() -> None:
    with pytest.raises(TypeError, match=r"^unknown keyword 'zzz'; valid ones: .*block_size, .*device, "):
        EngineConfig.from_kwargs(zzz=1)
