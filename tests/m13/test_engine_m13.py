"""What an engine with tiers does between steps and at its end, and what it refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from folovllm import SamplingParams
from folovllm.config import CacheConfig, EngineConfig, ModelConfig, ParallelConfig
from tests.m3.oracle import Oracle
from tests.m5.support import serve
from tests.m13.support import flush, forget_host, tiered_engine

PROMPT = list(range(3, 22))
GREEDY = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)


def test_what_the_last_step_filled_is_stored_when_nothing_is_left_to_do(oracle: Oracle, tmp_path: Path) -> None:
    engine = tiered_engine(oracle.folder, tmp_path)
    serve(engine, [(PROMPT, SamplingParams(temperature=0, max_tokens=1))])
    assert engine.scheduler.kv.offload is not None
    assert not engine.scheduler.kv.offload.has_stores
    flush(engine)
    forget_host(engine)
    (output,) = serve(engine, [(PROMPT, GREEDY)])
    assert output.num_cached_tokens == 16


def test_and_when_the_last_request_is_aborted(oracle: Oracle, tmp_path: Path) -> None:
    engine = tiered_engine(oracle.folder, tmp_path, async_scheduling=False)
    engine.add_request("a", PROMPT, GREEDY)
    engine.step()
    engine.abort_request("a")
    flush(engine)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 4


@pytest.mark.parametrize("limit", [{"max_model_len": 24}, {"num_kv_blocks": 1}])
def test_a_block_as_long_as_a_sequence_may_get(oracle: Oracle, tmp_path: Path, limit: dict[str, Any]) -> None:
    engine = tiered_engine(oracle.folder, tmp_path, block_size=24, **limit)
    (output,) = serve(engine, [(PROMPT, GREEDY)])
    assert output.outputs[0].token_ids == oracle.greedy(PROMPT, 2)


def test_flush_stores_what_became_full_while_others_run(oracle: Oracle, tmp_path: Path) -> None:
    engine = tiered_engine(oracle.folder, tmp_path)
    engine.add_request("a", PROMPT, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    engine.step()
    flush(engine)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 4
    while engine.has_unfinished_requests():
        (output,) = engine.step()[-1:] or [None]
    assert output is not None
    assert output.outputs[0].token_ids == oracle.greedy(PROMPT, 20)


def test_a_reset_reaches_the_folder(oracle: Oracle, tmp_path: Path) -> None:
    engine = tiered_engine(oracle.folder, tmp_path)
    serve(engine, [(PROMPT, GREEDY)])
    engine.reset_prefix_cache()
    (output,) = serve(engine, [(PROMPT, GREEDY)])
    assert output.num_cached_tokens == 0


def test_who_asks_for_a_prompts_log_probabilities_waits_for_nothing(oracle: Oracle, tmp_path: Path) -> None:
    engine = tiered_engine(oracle.folder, tmp_path)
    serve(engine, [(PROMPT, GREEDY)])
    flush(engine)
    forget_host(engine)
    (output,) = serve(engine, [(PROMPT, SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=1))])
    assert output.num_cached_tokens == 0
    assert engine.stats().kv_offload_tiering_chunk_queries == 1  # the first request's


def test_an_abort_while_its_blocks_are_read(oracle: Oracle, tmp_path: Path) -> None:
    engine = tiered_engine(oracle.folder, tmp_path)
    serve(engine, [(PROMPT, GREEDY)])
    flush(engine)
    forget_host(engine)
    engine.add_request("a", PROMPT, GREEDY)
    engine.abort_request("a")
    assert not engine.has_unfinished_requests()
    (output,) = serve(engine, [(PROMPT, GREEDY)])
    assert output.outputs[0].token_ids == oracle.greedy(PROMPT, 2)
    engine.scheduler.check_invariants()


def test_a_step_that_fails_leaves_nothing_half_moved(
    oracle: Oracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiered_engine(oracle.folder, tmp_path)
    serve(engine, [(PROMPT, GREEDY)])
    flush(engine)
    forget_host(engine)

    def fail(*args: object) -> None:
        raise RuntimeError("no")

    with monkeypatch.context() as patch:
        patch.setattr(engine.runner.mover, "move", fail)
        with pytest.raises(RuntimeError, match="no"):
            serve(engine, [(PROMPT, GREEDY)])
    engine.scheduler.check_invariants()
    for _ in range(2):
        (output,) = serve(engine, [(PROMPT, GREEDY)])
        assert output.outputs[0].token_ids == oracle.greedy(PROMPT, 2)


CHILD = """
import sys
from folovllm import LLMEngine, SamplingParams
from tests.m13.support import tiered_engine
engine = tiered_engine(sys.argv[1], sys.argv[2])
number = 0
while True:
    prompt = [(number * 31 + 7 * place) % 128 for place in range(40)]
    engine.add_request(str(number), prompt, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    while engine.has_unfinished_requests():
        engine.step()
    number += 1
    print(number, flush=True)
"""


@pytest.mark.exhaustive
def test_a_killed_engine_leaves_whole_files(oracle: Oracle, tmp_path: Path) -> None:
    """Killed at some moment, most likely in the middle of a file. What it leaves is right, or refused."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(oracle.folder), str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    for _ in range(3):
        assert child.stdout.readline()
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    engine = tiered_engine(oracle.folder, tmp_path)
    found = 0
    for number in range(5):
        prompt = [(number * 31 + 7 * place) % 128 for place in range(40)]
        (output,) = serve(engine, [(prompt, GREEDY)])
        assert output.outputs[0].token_ids == oracle.greedy(prompt, 2)
        found += output.num_cached_tokens or 0
    assert found > 0


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"kv_offloading_size": 0.0}, "kv_offloading_size must be positive, got 0.0"),
    ({"kv_offloading_size": float("nan")}, "kv_offloading_size must be"),
    (
        {"kv_offloading_size": 1.0, "enable_prefix_caching": False},
        "must be None without enable_prefix_caching, got 1.0",
    ),
    ({"kv_offloading_path": "x"}, "kv_offloading_path needs kv_offloading_size"),
    ({"kv_offloading_path": 3, "kv_offloading_size": 1.0}, "kv_offloading_path must be"),
    ({"kv_offloading_path_size": -1.0}, "kv_offloading_path_size must be positive, got -1.0"),
]


@pytest.mark.parametrize(("given", "text"), REFUSED)
def test_wrong_values(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        CacheConfig(**{"enable_prefix_caching": True, **given})


def test_ranks_have_no_folder() -> None:
    cache = CacheConfig(enable_prefix_caching=True, kv_offloading_size=1.0, kv_offloading_path="x")
    with pytest.raises(ValueError, match="kv_offloading_path must be None with tensor_parallel_size=2, got 'x'"):
        EngineConfig(ModelConfig("m"), cache, parallel_config=ParallelConfig(2))


def test_host_memory_without_room_for_a_block(oracle: Oracle) -> None:
    with pytest.raises(ValueError, match="kv_offloading_size must hold at least one block, got 1e-09"):
        tiered_engine(oracle.folder, None, kv_offloading_size=1e-9)


def test_a_folder_that_is_a_file(oracle: Oracle, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="kv_offloading_path must be a folder that can be written to, got "):
        tiered_engine(oracle.folder, tmp_path / "file")
