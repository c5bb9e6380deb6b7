"""Of a request of many sequences, a step makes outputs of those that have a new token and of no others."""

from __future__ import annotations

import asyncio
import threading

import pytest

from folovllm import AsyncLLM, LLMEngine, SamplingParams
from folovllm.engine import engine_client, output_processor
from folovllm.engine.output_processor import RequestState
from folovllm.outputs import CompletionOutput, RequestOutput
from folovllm.sampling_params import RequestOutputKind
from tests.m2.support import make_engine

MANY, ROWS = 60, 4


@pytest.fixture
def engine() -> LLMEngine:
    return make_engine("embedded", max_num_seqs=ROWS + 1, max_model_len=64)


def test_what_has_no_new_token_is_not_made_again(engine: LLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counting(**fields: object) -> CompletionOutput:
        made.append(fields["index"])  # type: ignore[arg-type]
        return CompletionOutput(**fields)  # type: ignore[arg-type]

    monkeypatch.setattr(output_processor, "CompletionOutput", counting)
    engine.add_request("many", "once", SamplingParams(n=MANY, max_tokens=3, ignore_eos=True, seed=0))
    assert engine.output_processor.request_states["many"].sequences == {}
    steps = 0
    while engine.has_unfinished_requests():
        made.clear()
        outputs = engine.step()
        steps += 1
        assert len(made) <= ROWS + 1
    assert steps >= 3 * MANY // (ROWS + 1)
    (output,) = outputs
    assert [each.index for each in output.outputs] == list(range(MANY))
    assert {len(each.token_ids) for each in output.outputs} == {3}
    assert {each.finish_reason for each in output.outputs} == {"length"}


@pytest.mark.parametrize("at_once", [3, 4])
@pytest.mark.parametrize("kind", [RequestOutputKind.FINAL_ONLY, RequestOutputKind.CUMULATIVE])
def test_many_texts_are_not_made_on_the_event_loop(
    kind: RequestOutputKind, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is lost of what comes while a thread makes them."""
    monkeypatch.setattr(engine_client, "AT_ONCE", at_once)
    wheres, make = list[bool](), RequestState.output

    def noting(state: RequestState) -> RequestOutput:
        if len(state.sequences) == 4:
            wheres.append(threading.current_thread() is threading.main_thread())
        return make(state)

    monkeypatch.setattr(RequestState, "output", noting)
    params = SamplingParams(n=4, max_tokens=40, ignore_eos=True, seed=0)

    async def read() -> list[RequestOutput]:
        llm = AsyncLLM(device="cpu", max_model_len=64)
        outputs = [output async for output in llm.generate("once", params, output_kind=kind)]
        await llm.shutdown()
        return outputs

    outputs = asyncio.run(read())
    assert (len(outputs) == 1) == (kind is RequestOutputKind.FINAL_ONLY)
    assert [len(each.token_ids) for each in outputs[-1].outputs] == [40] * 4
    assert set(wheres) == {at_once == 4}
