"""The watch over replicas ends when the server does, at whatever moment that comes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from folovllm.serving.replicas import client
from folovllm.serving.replicas.client import ReplicatedLLM
from folovllm.serving.routing import RoundRobin
from tests.serve.fleet import LocalFleet, facts_of

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
