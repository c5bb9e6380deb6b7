"""What ends by a replica at the moment at which something else comes: the watch over it, a request, an engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from folovllm import SamplingParams
from folovllm.engine import engine_client
from folovllm.engine.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from folovllm.engine.output_processor import RequestState
from folovllm.serving.replicas import client
from folovllm.serving.replicas.client import ReplicatedLLM
from folovllm.serving.routing import RoundRobin
from tests.serve.fleet import LocalFleet, facts_of
from tests.serve.support import wait_for

pytestmark = pytest.mark.serve


class SlowToAnswer(LocalFleet):
    """A question is answered as many turns of the event loop later as `turns` says."""

    turns = 0
    questions = 0

    async def snapshot(self, name: str) -> Any:
        self.questions += 1
        for _ in range(self.turns):
            await asyncio.sleep(0)
        return None


@pytest.mark.parametrize("turns", range(1, 6))
def test_a_shutdown_that_meets_an_answer_ends_the_watch(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each turn around the answer's: Python 3.11's asyncio.wait_for loses the cancellation in one of them."""
    monkeypatch.setattr(client, "PERIOD", 0)
    fleet = SlowToAnswer(1, dtype="float32", num_kv_blocks=16)
    fleet.turns = 3

    async def main() -> None:
        llm = ReplicatedLLM(fleet, RoundRobin(), facts_of_fleet)
        llm.replicas()
        watch = llm._watching["replica-0"]
        for _ in range(turns):
            await asyncio.sleep(0)
        ended = asyncio.ensure_future(llm.shutdown())
        asked = fleet.questions
        while not ended.done() and fleet.questions <= asked + 1:
            await asyncio.sleep(0)
        watch.cancel()  # a watch that goes on would keep the test from ending
        await ended
        assert fleet.questions <= asked + 1

    facts_of_fleet = facts_of(LocalFleet(1, dtype="float32", num_kv_blocks=16))
    asyncio.run(main())


class ByHand(LocalFleet):
    """Each of four sequences has two tokens, and the second comes while the reader makes an output of the first."""

    def __init__(self) -> None:
        super().__init__(1, dtype="float32", num_kv_blocks=16)
        self.reader_makes_one = threading.Event()

    async def generate(self, name: str, request: EngineCoreRequest) -> AsyncGenerator[EngineCoreOutputs, None]:
        for reason in (None, "length"):
            yield EngineCoreOutputs([EngineCoreOutput(request.key, i, [5], None, reason) for i in range(4)])  # type: ignore[arg-type]
            await asyncio.to_thread(self.reader_makes_one.wait)


def test_a_request_may_end_while_a_thread_makes_one_of_its_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its replica has sent all: that the messages have come to an end is no error."""
    monkeypatch.setattr(engine_client, "AT_ONCE", 3)
    make, fleet = RequestState.output, ByHand()
    llm = ReplicatedLLM(fleet, RoundRobin(), facts_of(fleet))

    def in_a_thread(state: RequestState) -> Any:
        fleet.reader_makes_one.set()
        wait_for(lambda: not llm._reading)
        return make(state)

    monkeypatch.setattr(RequestState, "output", in_a_thread)

    async def main() -> list[Any]:
        outputs = [output async for output in llm.generate("once", SamplingParams(n=4, max_tokens=2))]
        await llm.shutdown()
        return outputs

    outputs = asyncio.run(main())
    assert [[len(each.token_ids) for each in output.outputs] for output in outputs] == [[1] * 4, [2] * 4]


def test_what_ends_an_engine_comes_to_who_is_busy_with_what_came_before() -> None:
    fleet = LocalFleet(1, dtype="float32", num_kv_blocks=64)
    replica = fleet.replicas["replica-0"]
    (checked,) = replica.engine.input_processor.check(["once"], SamplingParams(max_tokens=40, ignore_eos=True))

    async def main() -> EngineCoreOutputs:
        messages = replica.generate(EngineCoreRequest(0, "r", checked, checked.params))
        assert (await anext(messages)).outputs
        replica._streams[0].waiting.outputs.clear()
        replica._take(RuntimeError("the device has faulted"), set())
        return await anext(messages)

    assert str(asyncio.run(main()).failures[0]) == "the device has faulted"
