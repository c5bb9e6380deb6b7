"""AsyncLLM with what programs for vLLM ask of it: their options, their parameters, and streams of deltas.

vLLM: v1/engine/async_llm.py
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from folovllm.engine import async_llm as base
from folovllm.engine.input_processor import Prompt
from folovllm.engine.llm_engine import LLMEngine
from folovllm.engine.stream import OutputDelta, check_can_stream
from folovllm.entrypoints.clients.chat import check_no_lora
from folovllm.entrypoints.clients.inputs import ClientInputs, adopt
from folovllm.entrypoints.clients.looks import EngineLook, Load, load_of, look_at
from folovllm.entrypoints.clients.options import engine_options
from folovllm.entrypoints.clients.params import RequestOutputKind, SamplingParams
from folovllm.outputs import RequestOutput
from folovllm.sampling_params import SamplingParams as PlainParams


class AsyncLLM(base.AsyncLLM):
    """An engine for asyncio. Args and errors: as for LLM."""

    inputs: ClientInputs

    def __init__(self, model: str | None = None, **kwargs: Any) -> None:
        super().__init__(model, **engine_options(kwargs))

    def _start(self, engine: LLMEngine) -> None:
        self.inputs = adopt(engine)
        super()._start(engine)

    @property
    def is_closed(self) -> bool:
        """Whether it takes nothing any more: after shutdown(), or after an error of the engine itself."""
        return self._closed

    def load(self) -> Load:
        """What runs and waits; cheap enough to ask for each request."""
        return load_of(self.engine)

    def replicas(self) -> dict[str, str]:
        """Name and state of each replica: none, for this is one engine."""
        return {}

    async def looks(self) -> list[EngineLook]:
        """A look at each engine that is behind this object: here at the one."""
        return [look_at(self.engine)]

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: PlainParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        lora_request: None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """As the milestones' AsyncLLM.generate; `output_kind` says what is handed out.

        Under DELTA each output holds what is new since the one before. Under FINAL_ONLY there is one output.

        Raises:
            ValueError: also DELTA where the winners are known only at the end: beams, and best_of > n.
        """
        check_no_lora(lora_request)
        kind = RequestOutputKind.CUMULATIVE
        if isinstance(sampling_params, SamplingParams):
            kind = sampling_params.output_kind
        if kind is RequestOutputKind.DELTA:
            check_can_stream(sampling_params)
        delta = OutputDelta()
        async with aclosing(super().generate(prompt, sampling_params, request_id, priority=priority)) as outputs:
            async for output in outputs:
                if kind is RequestOutputKind.DELTA:
                    yield delta.since_last(output)
                elif kind is RequestOutputKind.CUMULATIVE or output.finished:
                    yield output
