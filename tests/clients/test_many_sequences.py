"""Of a request of many sequences, a step makes outputs of those that have a new token and of no others."""

from __future__ import annotations

import asyncio
import threading

import pytest

from folovllm import LLMEngine, SamplingParams
from folovllm.engine import output_processor
from folovllm.engine.deltas import DeltaDecoder
from folovllm.engine.engine_client import AT_ONCE, OutputCollector
from folovllm.engine.input_processor import Checked
from folovllm.outputs import CompletionOutput, RequestOutput
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
