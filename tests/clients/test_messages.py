"""What goes from a client to a core in another process, and back."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from folovllm import AsyncLLM, SamplingParams, StructuredOutputsParams
from folovllm.engine.messages import EngineCoreOutputs, EngineCoreRequest
from folovllm.engine.output_processor import OutputProcessor
from folovllm.outputs import RequestOutput

PROMPT = "Once upon a time"
STOP_IDS = [*range(0, 3000, 5)]


def outputs_of(params: SamplingParams) -> tuple[list[RequestOutput], list[RequestOutput]]:
    """What a client in the engine's process hands out, and what another one makes of the same messages, pickled, all
    at the end."""

    async def run() -> tuple[list[RequestOutput], list[RequestOutput]]:
        messages: list[EngineCoreOutputs] = []
        async with AsyncLLM(dtype="float32", num_kv_blocks=64) as llm:
            deliver = llm.receive
            llm.receive = lambda message: (messages.append(pickle.loads(pickle.dumps(message))), deliver(message))  # type: ignore[method-assign, func-returns-value, assignment]
            direct = [output async for output in llm.generate(PROMPT, params)]
            other = OutputProcessor(llm.engine.tokenizer)
            token_ids = llm.engine.tokenizer(PROMPT)["input_ids"]
            state = other.add_request(0, direct[0].request_id, PROMPT, token_ids, params)
            for message in messages:
                other.process_outputs(message)
            assert state.finished
            assert other.request_states == {}
        return direct, [state.output()]

    return asyncio.run(run())


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=8, temperature=0),
        SamplingParams(max_tokens=8, n=3, seed=1, logprobs=2, prompt_logprobs=1),
        SamplingParams(max_tokens=12, temperature=0, stop=["girl"]),
        SamplingParams(max_tokens=40, n=3, seed=1, temperature=3.0),  # half characters, too
        SamplingParams(max_tokens=20, seed=2, temperature=3.0, stop_token_ids=STOP_IDS),
        SamplingParams(max_tokens=20, seed=2, temperature=3.0, stop_token_ids=STOP_IDS,
                       include_stop_str_in_output=True, skip_special_tokens=False),
        SamplingParams(max_tokens=8, n=2, best_of=4, seed=1),
        SamplingParams(max_tokens=8, use_beam_search=True, temperature=0, best_of=3, n=2, logprobs=1),
    ],
    ids=["plain", "several with log-probabilities", "stop", "several", "without the stop token", "with it", "best_of",
         "beams"],
)  # fmt: skip
def test_who_reads_late_and_elsewhere_gets_the_same_answer(params: SamplingParams) -> None:
    direct, arrived = outputs_of(params)
    for output in (direct[-1], arrived[0]):
        assert output.metrics is not None
        assert output.metrics.first_token_time is not None
        assert output.metrics.num_output_tokens >= sum(len(choice.token_ids) for choice in output.outputs)
        output.metrics = None
    assert any(choice.text for choice in arrived[0].outputs)
    assert not params.stop_token_ids or arrived[0].outputs[0].finish_reason == "stop"
    assert arrived[0] == direct[-1]


def test_a_compiled_grammar_is_not_pickled_and_its_text_is() -> None:
    pytest.importorskip("llguidance")
    llm = AsyncLLM(dtype="float32", num_kv_blocks=64)
    form = StructuredOutputsParams(choice=["yes", "no"])
    (checked,) = llm.engine.input_processor.check([[1]], SamplingParams(structured_outputs=form))
    request = pickle.loads(pickle.dumps(EngineCoreRequest(0, "r", checked, checked.params).portable()))
    assert request.params.structured_outputs == form
    assert request.params.extra_args is None
