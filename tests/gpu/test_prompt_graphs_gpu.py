"""Steps with prompts in CUDA graphs, on a CUDA device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from folovllm import SamplingParams
from folovllm.worker.prompt_graph import PromptGraphs
from tests.gpu.test_engine_gpu import PROMPTS, assert_greedy, make_llm, oracle
from tests.m2.support import assert_idle
from tests.m3.oracle import Oracle

__all__ = ["oracle"]
pytestmark = pytest.mark.gpu  # conftest.py skips without a CUDA device


@pytest.mark.parametrize("settings", [{"num_kv_blocks": 24, "block_size": 4}, {"max_num_batched_tokens": 32}], ids=str)
def test_greedy_tokens_with_chunks_and_preemption(
    oracle: Oracle, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    replay = PromptGraphs.replay

    def watched(self: PromptGraphs, inputs: Any, shape: Any) -> torch.Tensor:
        steps.append(len(inputs.input_ids))
        return replay(self, inputs, shape)

    monkeypatch.setattr(PromptGraphs, "replay", watched)
    llm = make_llm(oracle, max_num_seqs=10, **settings)
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=20), use_tqdm=False)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert_greedy(oracle, prompt, output.outputs[0].token_ids)
    assert len(steps) >= 2
    assert_idle(llm.engine)


def test_a_step_with_prompts_is_launched_without_a_wait(oracle: Oracle) -> None:
    engine = make_llm(oracle, max_num_seqs=8, async_scheduling=False).engine
    for i in range(3):
        engine.add_request(str(i), PROMPTS[i], SamplingParams(temperature=0, max_tokens=40))
        engine.step()  # the settings of the draws are uploaded when the sequences change
    engine.add_request("more", PROMPTS[3], SamplingParams(temperature=0, max_tokens=2))
    launch = engine.runner.execute_model

    def strictly(scheduled: Any) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return launch(scheduled)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    engine.runner.execute_model = strictly  # type: ignore[method-assign]
    engine.step()
