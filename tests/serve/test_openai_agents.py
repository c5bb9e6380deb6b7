"""openai-agents as a client, by its default interface: a call, its result, and a text that ends the run."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from agents import Agent, ModelSettings, OpenAIResponsesModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI

from tests.serve.support import Running


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_run_calls_its_tool_and_ends_with_a_text(server: Running, is_streamed: bool) -> None:
    """The first turn must call; the next, which names the first response and sends the result alone, is free."""
    asked: list[int] = []

    @function_tool
    def double(number: Literal[1, 2, 3]) -> int:
        """Twice a number."""
        asked.append(number)
        return 2 * number

    async def run(url: str) -> Any:
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        settings = ModelSettings(tool_choice="required", parallel_tool_calls=False, temperature=0, max_tokens=99)
        agent = Agent(name="a", instructions="Be brief.", tools=[double], model_settings=settings,
                      model=OpenAIResponsesModel("embedded", client))  # fmt: skip
        more: dict[str, Any] = {"max_turns": 2, "auto_previous_response_id": True,
                                "run_config": RunConfig(tracing_disabled=True)}  # fmt: skip
        if not is_streamed:
            return await Runner.run(agent, "Twice two?", **more)
        result = Runner.run_streamed(agent, "Twice two?", **more)
        async for _ in result.stream_events():
            pass
        return result

    result = asyncio.run(run(server.url))
    assert len(asked) == 1
    kinds = [item.type for item in result.new_items]
    assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"]
    assert isinstance(result.final_output, str)
    assert len(result.raw_responses) == 2
