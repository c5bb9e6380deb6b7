"""A replica: one engine in a process of its own, on any machine of the cluster. No Ray in here: it is a plain class.

vLLM: v1/engine/core.py (EngineCoreProc)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from folovllm.engine.async_llm import AsyncLLM
from folovllm.engine.looks import EngineLook, look_at
from folovllm.outputs import RequestOutput
from folovllm.serving.front_engine import RemoteFacts
from folovllm.serving.wire import Ask, differences


class EngineReplica:
    """Args: as for AsyncLLM. Its methods are coroutines, so that all of them run in one event loop."""

    def __init__(self, name: str, model: str, options: dict[str, Any]) -> None:
        self.name, self.llm = name, AsyncLLM(model, **options)

    async def facts(self) -> RemoteFacts:
        return RemoteFacts.of(self.llm.engine)

    async def generate(self, ask: Ask) -> AsyncGenerator[RequestOutput, None]:
        """What each output gained. Raises: as AsyncLLM.generate."""
        params = ask.params
        if params.structured_outputs is not None:  # compiled here, and kept: the step that takes it in need not wait
            grammars = self.llm.engine.input_processor.grammars
            await asyncio.to_thread(grammars.compile, params.structured_outputs)
        outputs = self.llm.generate(*ask.given(), ask.request_id, priority=ask.priority)
        async with aclosing(differences(outputs, params)) as each:
            async for gained in each:
                yield gained

    async def abort(self, request_id: str) -> None:
        self.llm.abort(request_id)

    async def reset_prefix_cache(self) -> None:
        self.llm.reset_prefix_cache()

    async def look(self) -> EngineLook:
        return look_at(self.llm.engine, self.name)

    async def check_health(self) -> None:
        """Asked once a second. Raises RuntimeError where only another process can help: this one is then replaced."""
        if self.llm.is_closed:
            raise RuntimeError(f"the engine of {self.name} has ended by an error of its own")
