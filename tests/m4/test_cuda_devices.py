"""The second of two GPUs serves as the first does, in whichever thread; the clock of a step sees a replay; a fault of
the device ends the engine."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from folovllm import EngineDeadError, LLMEngine, SamplingParams
from tests.fake_cuda import FakeCuda
from tests.m3.oracle import Oracle
from tests.m4.cuda_support import make_engine, serve

pytestmark = pytest.mark.slow
SMALL = {"max_num_seqs": 2, "max_model_len": 16, "num_kv_blocks": 8}
PROMPT = [5, 6, 7]
GREEDY = SamplingParams(temperature=0, max_tokens=4)


def tokens_of(engine: LLMEngine) -> list[int]:
    return serve(engine, [(PROMPT, GREEDY)])[0]["outputs"][0]["token_ids"]


def test_the_second_device_serves_while_the_first_is_the_current_one(small_oracle: Oracle, fake_cuda: FakeCuda) -> None:
    engine = make_engine(small_oracle, "cuda:1", **SMALL)
    assert tokens_of(engine) == small_oracle.greedy(PROMPT, 4)
    assert torch.cuda.current_device() == 0
    assert fake_cuda.devices[0].memory.peak == 0
    assert fake_cuda.devices[1].memory.live > 0


@pytest.mark.exhaustive
def test_a_device_without_a_number_is_the_current_one_also_for_other_threads(
    small_oracle: Oracle, fake_cuda: FakeCuda
) -> None:
    """A thread begins with the first device, whatever its maker's is."""
    torch.cuda.set_device(1)
    engine = make_engine(small_oracle, "cuda", **SMALL)
    assert engine.device == torch.device("cuda:1")
    found: list[list[int]] = []
    thread = threading.Thread(target=lambda: found.append(tokens_of(engine)))
    thread.start()
    thread.join()
    assert found == [small_oracle.greedy(PROMPT, 4)]


def finish(engine: LLMEngine) -> None:
    while engine.has_unfinished_requests():
        engine.step()


def replay_fails(engine: LLMEngine, monkeypatch: pytest.MonkeyPatch, fail: Any) -> None:
    """The first replay does, by `fail`; others are as they were."""
    replay, calls = engine.runner.graphs.replay, []

    def failing(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            fail()
        return replay(*args)

    monkeypatch.setattr(engine.runner.graphs, "replay", failing)


def test_a_device_that_has_faulted_ends_the_engine_with_one_message(
    small_oracle: Oracle, fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(small_oracle, **SMALL)

    def fault() -> None:
        fake_cuda.broken = "an illegal memory access was encountered\nCUDA kernel errors might be ..."

    replay_fails(engine, monkeypatch, fault)
    message = (
        r"^cuda:0 has faulted, and every further call in this process fails the same way: CUDA error: an illegal "
        r"memory access was encountered; start the process anew, with CUDA_LAUNCH_BLOCKING=1 to learn which call it "
        r"was$"
    )
    for name in ("a", "b"):
        engine.add_request(name, PROMPT, GREEDY)
        with pytest.raises(EngineDeadError, match=message):
            finish(engine)


def test_memory_that_is_short_once_costs_the_requests_of_that_step_only(
    small_oracle: Oracle, fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(small_oracle, **SMALL)

    def fail() -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    replay_fails(engine, monkeypatch, fail)
    engine.add_request("a", PROMPT, GREEDY)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        finish(engine)
    assert tokens_of(engine) == small_oracle.greedy(PROMPT, 4)
