"""EngineArgs and AsyncEngineArgs: the keywords of LLM as an object and as options."""

from __future__ import annotations

import argparse
import dataclasses

import pytest

from folovllm import LLM, AsyncEngineArgs, AsyncLLM, EngineArgs, LLMEngine


def test_engine_args_are_keywords_of_llm() -> None:
    args = EngineArgs(num_gpu_blocks_override=40, scheduling_policy="priority", pipeline_parallel_size=1)
    config = args.create_engine_config()
    assert (config.cache_config.num_kv_blocks, config.scheduler_config.policy) == (40, "priority")
    llm = LLM(**dataclasses.asdict(args))
    assert (llm.engine.stats().kv_blocks_total, llm.engine.config.scheduler_config.policy) == (40, "priority")
    assert LLMEngine.from_engine_args(args).stats().kv_blocks_total == 40
    assert AsyncLLM.from_engine_args(AsyncEngineArgs(num_kv_blocks=41)).stats().kv_blocks_total == 41
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    parsed = EngineArgs.from_cli_args(parser.parse_args(["--num-kv-blocks", "42", "--dtype", "float32"]))
    assert parsed == EngineArgs(num_kv_blocks=42, dtype="float32")
    with pytest.raises(ValueError, match="pipeline_parallel_size must be "):
        EngineArgs(pipeline_parallel_size=2).create_model_config()
    with pytest.raises(TypeError, match="max_num_sequences"):
        EngineArgs(max_num_sequences=2)
    assert LLM.from_engine_args(EngineArgs(num_kv_blocks=40, max_model_len=64)).engine.max_model_len == 64
