"""AsyncLLM with what programs for vLLM ask of it: their options, their parameters, and streams of deltas.

vLLM: v1/engine/async_llm.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from folovllm.engine import async_llm as base
from folovllm.engine.input_processor import Prompt
from folovllm.engine.llm_engine import LLMEngine
from folovllm.engine.stream import OutputDelta, check_can_stream
from folovllm.entrypoints.clients.chat import check_no_lora
from folovllm.entrypoints.clients.looks import EngineLook, Load, load_of, look_at
from folovllm.entrypoints.clients.options import engine_options
from folovllm.entrypoints.clients.step_thread import Mailbox, StepThread
from folovllm.outputs import RequestOutput
from folovllm.sampling_params import RequestOutputKind, SamplingParams
from folovllm.utils.ids import next_unused


class AsyncLLM(base.AsyncLLM):
    """An engine for asyncio. Args and errors: as for LLM."""

    def __init__(self, model: str | None = None, **kwargs: Any) -> None:
        super().__init__(model, **engine_options(kwargs))

    def _start(self, engine: LLMEngine) -> None:
        self._steps: StepThread | None = None
        self._want_the_end: set[str] = set()  # requests whose consumers read their last output alone
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
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        lora_request: None = None,
        output_kind: RequestOutputKind | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """As the milestones' AsyncLLM.generate; `output_kind`, or that of the parameters, says what is handed out.

        Under DELTA each output holds what is new since the one before. Under FINAL_ONLY there is one output, and the
        steps before it wake nobody.

        Raises:
            ValueError: also DELTA where the winners are known only at the end: beams, and best_of > n.
        """
        check_no_lora(lora_request)
        kind = output_kind or getattr(sampling_params, "output_kind", RequestOutputKind.CUMULATIVE)
        if kind is RequestOutputKind.DELTA:
            check_can_stream(sampling_params)
        if request_id is None:
            request_id = next_unused("async", self._request_ids, self._mailboxes.__contains__)
        is_quiet = kind is RequestOutputKind.FINAL_ONLY and request_id not in self._mailboxes
        if is_quiet:
            self._want_the_end.add(request_id)
        delta = OutputDelta()
        try:
            async with aclosing(super().generate(prompt, sampling_params, request_id, priority=priority)) as outputs:
                async for output in outputs:
                    if kind is RequestOutputKind.DELTA:
                        yield delta.since_last(output)
                    elif kind is RequestOutputKind.CUMULATIVE or output.finished:
                        yield output
        finally:
            if is_quiet:
                self._want_the_end.discard(request_id)

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._steps is not None:  # of an earlier event loop
            self._steps.end()
        await loop.run_in_executor(self._thread, lambda: None)  # it has ended
        steps = self._steps = StepThread(self.engine, loop, self._is_open)
        running: asyncio.Future[None] | None = None
        try:
            while True:
                self._wake.clear()
                commands, self._commands = self._commands, []
                if commands and steps.submit(commands):
                    running = loop.run_in_executor(self._thread, steps.run)
                    running.add_done_callback(lambda _: self._wake.set())
                if self._closed and not self._commands:
                    return
                await self._wake.wait()
                if running is not None and running.done():
                    running.result()  # raises what the engine raised
        finally:
            steps.end()
            if running is not None and self._closed:
                await running

    def _is_open(self, request_id: str, mailbox: Mailbox) -> bool:
        return self._mailboxes.get(request_id) is mailbox

    def _add(
        self, mailbox: Mailbox, request_id: str, prompt: Prompt, params: SamplingParams | None, priority: int
    ) -> None:
        """In the step thread."""
        if not self._is_open(request_id, mailbox):
            return  # cancelled before it began
        assert self._steps is not None
        try:
            self.engine.add_request(request_id, prompt, params, priority=priority)
        except Exception as error:
            self._steps.loop.call_soon_threadsafe(mailbox.fail, error)
        else:
            self._steps.expect(request_id, mailbox, wants_all=request_id not in self._want_the_end)
