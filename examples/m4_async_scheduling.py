"""The next step is launched before this one's tokens are known: who is called when, and that the outputs are the same.

On a CPU a launch computes at once, so nothing is won here; on a GPU it returns while the device computes.

Run it: python examples/m4_async_scheduling.py
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import _tree  # noqa: F401 - folovllm is this tree's

from folovllm import LLM, SamplingParams
from folovllm.worker.async_output import AsyncModelRunnerOutput

PROMPTS = ["Once upon a time", "从前", "One day a little bird"]
SHOWN = 8  # calls


def run(title: str, run_ahead: bool, params: SamplingParams) -> list[list[int]]:
    """Serve the prompts; print the order of the first calls, and return the tokens."""
    # In float32: in bfloat16, batches of other sizes may be rounded otherwise.
    engine = LLM(dtype="float32", max_model_len=128, num_kv_blocks=32, async_scheduling=run_ahead).engine
    runner, calls, numbers, ahead = engine.runner, [], {}, 0
    launch, collect = runner.execute_model, AsyncModelRunnerOutput.get_output

    def launching(scheduled: Any) -> Any:
        nonlocal ahead
        in_flight = len(numbers) - sum(call.startswith("collect") for call in calls)
        step = launch(scheduled)
        ahead += in_flight > 0
        numbers[id(step)] = len(numbers) + 1, step
        calls.append(f"launch {len(numbers)}")
        return step

    def collecting(step: Any) -> Any:
        calls.append(f"collect {numbers[id(step)][0]}")
        return collect(step)

    outputs: dict[str, list[int]] = {}
    with (
        patch.object(runner, "execute_model", launching),
        patch.object(AsyncModelRunnerOutput, "get_output", collecting),
    ):
        for number, prompt in enumerate(PROMPTS):
            engine.add_request(str(number), prompt, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                outputs[output.request_id] = output.outputs[0].token_ids
    print(f"{title}: {ahead} of {len(numbers)} steps launched while another was in flight")
    print(f"  {' │ '.join(calls[:SHOWN])} │ …\n")
    return [outputs[str(number)] for number in range(len(PROMPTS))]


sampled = SamplingParams(temperature=0.8, seed=1, max_tokens=24, ignore_eos=True)
penalised = SamplingParams(temperature=0, repetition_penalty=1.2, max_tokens=24, ignore_eos=True)

off = run("off", False, sampled)
on = run("on ", True, sampled)
print(f"the same tokens: {on == off}\n")
# A repetition penalty reads the token before, so the host must have it before the next draw.
print(f"with a penalty: {run('on ', True, penalised) == run('off', False, penalised)}")
