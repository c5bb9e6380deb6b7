"""A replica: one engine in a process, on any machine of the cluster. No Ray in here: it is a plain class.

vLLM: v1/engine/core.py (EngineCoreProc)
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from folovllm.engine.async_llm import AsyncLLM
from folovllm.engine.deltas import DeltaEncoder
from folovllm.engine.messages import EngineCoreRequest
from folovllm.engine.snapshots import EngineSnapshot, snapshot_of
from folovllm.outputs import RequestOutput
from folovllm.sampling_params import RequestOutputKind
from folovllm.serving.front_engine import RemoteFacts


class EngineReplica:
    """Args: as for AsyncLLM. Its methods are coroutines, so that all of them run in one event loop."""

    def __init__(self, name: str, model: str, options: dict[str, Any]) -> None:
        self.name, self.llm = name, AsyncLLM(model, **options)

    async def facts(self) -> RemoteFacts:
        return RemoteFacts.of(self.llm.engine)

    async def generate(self, request: EngineCoreRequest) -> AsyncGenerator[RequestOutput, None]:
        """What each output gained. Raises: as AsyncLLM.generate."""
        encoder, kind = DeltaEncoder(request.params), RequestOutputKind.CUMULATIVE
        if request.final_only or encoder.is_whole:
            kind = RequestOutputKind.FINAL_ONLY
        outputs = self.llm.generate(
            request.prompt, request.params_to_check(), request.request_id, priority=request.priority, output_kind=kind
        )
        async with aclosing(outputs) as each:
            async for output in each:
                yield encoder.encode(output)

    async def reset_prefix_cache(self) -> None:
        self.llm.reset_prefix_cache()

    async def snapshot(self) -> EngineSnapshot:
        return snapshot_of(self.llm.engine, self.name)

    async def check_health(self) -> None:
        """Asked once a second. Raises RuntimeError where only another process can help: this one is then replaced."""
        if self.llm.is_closed:
            raise RuntimeError(f"the engine of {self.name} has ended by an error")
