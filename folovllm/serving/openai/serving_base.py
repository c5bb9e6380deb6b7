"""OpenAIServing: the base of chat and text completions. A body becomes work, and its outputs one response, or chunks.

vLLM: entrypoints/serve/engine/serving.py
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any, Generic, TypeVar

from folovllm.outputs import RequestOutput
from folovllm.serving.openai.background import Check
from folovllm.serving.openai.formatting import ChoiceDelta, Chunks, encoded, head, size, usage
from folovllm.serving.openai.protocol import Sampling
from folovllm.serving.openai.serving_engine import ServeContext, ServingEngine
from folovllm.serving.openai.streams import Burst, made

B = TypeVar("B", bound=Sampling)


class OpenAIServing(ABC, Generic[B]):
    """Args:
    prefix: how ids of answers begin.
    kind, chunk_kind: what an answer and a chunk are called.
    """

    def __init__(self, serving: ServingEngine, prefix: str, kind: str, chunk_kind: str) -> None:
        self.serving, self.prefix, self.kind, self.chunk_kind = serving, prefix, kind, chunk_kind

    @abstractmethod
    def make_context(self, body: B, key: str, check: Check) -> ServeContext:
        """Raises ValueError: what is wrong with the request, by the field's name."""

    @abstractmethod
    def make_answer(self, body: B, work: ServeContext, found: list[RequestOutput], check: Check) -> dict[str, Any]:
        """All but head and usage. `found`: the finished output of each prompt."""

    @abstractmethod
    def make_chunk(
        self, body: B, output: RequestOutput, gained: ChoiceDelta, kept: dict[int, Any], check: Check
    ) -> dict[str, Any] | None:
        """All but head and usage, or None for no chunk. `kept`: what of each choice is kept from one to the next."""

    async def work(self, body: B, key: str) -> ServeContext:
        """Raises APIError: what is wrong with the request, by the field's name."""
        self.serving.check_model(body.model)
        return await self.serving.prepare(partial(self.make_context, body, key), is_quick=self.is_quick(body))

    def is_quick(self, body: B) -> bool:  # whether make_context takes microseconds
        return False

    async def whole(self, body: B, work: ServeContext) -> bytes:
        found = await self.serving.finished(work)
        start = head(self.prefix, self.kind, self.serving.answers_as(work), body.request_id)

        def answer(check: Check) -> bytes:
            counted = {"usage": usage(found, drop_tokens=work.drop_tokens)}
            return encoded({**start, **self.make_answer(body, work, found, check), **counted}, check)

        values = sum(
            size([(0, not place, choice) for place, choice in enumerate(output.outputs)], output) for output in found
        )
        return await made(answer, self.serving.background, values)

    async def chunks(self, body: B, work: ServeContext) -> AsyncGenerator[Burst, None]:
        start = head(self.prefix, self.chunk_kind, self.serving.answers_as(work), body.request_id)
        options, forced = body.stream_options, self.serving.options.enable_force_include_usage
        chunks, kept = Chunks(work.params.n, len(work.prompts)), dict[int, Any]()

        def burst(output: RequestOutput, deltas: list[ChoiceDelta], total: Any, is_last: bool, check: Check) -> Burst:
            counts = options is not None and options.continuous_usage_stats
            counted = usage([output]) if counts else None
            events = [
                {**start, **chunk, "usage": counted}
                for each in deltas
                if (chunk := self.make_chunk(body, output, each, kept, check)) is not None
            ]
            if total is not None:
                events.append({**start, "choices": [], "usage": total})
            return Burst.of(events, is_last, check)

        async with aclosing(self.serving.outputs(work)) as outputs:
            async for place, output in outputs:
                deltas = list(chunks.deltas(place, output))
                asks = chunks.are_over() and (forced or (options is not None and options.include_usage))
                total = usage(chunks.newest.values(), drop_tokens=work.drop_tokens) if asks else None
                if deltas or total is not None:
                    make = partial(burst, output, deltas, total, chunks.are_over())
                    yield await made(make, self.serving.background, size(deltas, output if body.echo else None))
