"""Of a request of many sequences, a step makes outputs of those that have a new token and of no others."""

from __future__ import annotations

import asyncio
import threading

import pytest

from folovllm import AsyncLLM, LLMEngine, SamplingParams
from folovllm.engine import engine_client, output_processor
from folovllm.engine.deltas import DeltaDecoder, DeltaEncoder
from folovllm.engine.engine_client import AT_ONCE, OutputCollector
from folovllm.engine.input_processor import Checked
from folovllm.engine.messages import EngineCoreOutputs
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
    params = SamplingParams(n=MANY, max_tokens=3, ignore_eos=True, seed=0)
    engine.add_request("many", "once", params)
    assert engine.output_processor.sequences == {}
    steps, encoder, decoder = 0, DeltaEncoder(params), DeltaDecoder(Checked("once", [1], params, None))
    while engine.has_unfinished_requests():
        made.clear()
        outputs = engine.step()
        steps += 1
        assert len(made) <= ROWS + 1
        for output in outputs:
            decoder.add(sent := encoder.encode(output))
            assert [each.index for each in sent.outputs] == made
            assert [each.token_ids for each in decoder.output().outputs] == [each.token_ids for each in output.outputs]
    assert steps >= 3 * MANY // (ROWS + 1)
    (output,) = outputs
    assert decoder.output().outputs == output.outputs
    assert [each.index for each in output.outputs] == list(range(MANY))
    assert {len(each.token_ids) for each in output.outputs} == {3}
    assert {each.finish_reason for each in output.outputs} == {"length"}


@pytest.mark.parametrize("counts", [[1, 2], [AT_ONCE + 1, 1], [1, AT_ONCE + 1, AT_ONCE + 1]])
def test_many_texts_are_not_made_on_the_event_loop(counts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    wheres, add = list[bool](), DeltaDecoder.add

    def noting(self: DeltaDecoder, gained: RequestOutput) -> None:
        wheres.append(threading.current_thread() is threading.main_thread())
        add(self, gained)

    monkeypatch.setattr(DeltaDecoder, "add", noting)

    async def read() -> RequestOutput:
        collector = OutputCollector("r", DeltaDecoder(Checked(None, [1], SamplingParams(), None)))
        for place, count in enumerate(counts):
            pieces = [CompletionOutput(index, "", [place], None) for index in range(count)]
            collector.put(RequestOutput("r", None, [], None, pieces, place == len(counts) - 1))
        return await collector.get()

    output = asyncio.run(read())
    expected = [[place for place, count in enumerate(counts) if index < count] for index in range(max(counts))]
    assert [each.token_ids for each in output.outputs] == expected
    late = next((place for place, count in enumerate(counts) if count > AT_ONCE), len(counts))
    assert wheres == [place < late for place in range(len(counts))]


@pytest.mark.parametrize("at_once", [3, 4])
def test_the_one_output_of_many_comes_in_parts(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "AT_ONCE", at_once)
    params = SamplingParams(n=4, max_tokens=5, ignore_eos=True, seed=0, output_kind=RequestOutputKind.FINAL_ONLY)

    async def read() -> tuple[list[RequestOutput], int]:
        messages, llm = list[EngineCoreOutputs | Exception](), AsyncLLM(device="cpu", max_model_len=64)
        take = llm.receive
        monkeypatch.setattr(llm, "receive", lambda message: (messages.append(message), take(message)))
        outputs = [output async for output in llm.generate("once", params)]
        await llm.shutdown()
        return outputs, sum(len(each.outputs) for each in messages if isinstance(each, EngineCoreOutputs))

    outputs, num_sent = asyncio.run(read())
    assert [len(each.token_ids) for output in outputs for each in output.outputs] == [5] * 4
    assert (num_sent > 1) == (at_once < 4)
