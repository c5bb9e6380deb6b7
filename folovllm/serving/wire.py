"""What goes between the front and an engine elsewhere: a request one way, and what each output gained the other way.

    front                                   engine
    Ask ──────────────────────────────────▶ a request
    Arriving ◀── "A" ◀── " B" ◀── " C" ◀──  Shrinking: what is new of each output

An output holds everything so far, and sent as it is, n tokens would cost n²/2 of them on the wire. So the engine's side
sends differences, and the front adds them up again. A slow reader gets the sum: the tokens wait once, on the front.

vLLM: v1/engine/__init__.py (EngineCoreRequest, EngineCoreOutput)
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from folovllm.engine.stream import OutputDelta
from folovllm.outputs import CompletionOutput, RequestOutput
from folovllm.request import Request
from folovllm.sample.structured.processor import KEY
from folovllm.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that has been checked. A compiled form does not travel: what it was compiled from does."""

    request_id: str
    prompt: dict[str, Any]
    params: SamplingParams
    priority: int

    @classmethod
    def of(cls, request: Request, priority: int) -> Ask:
        prompt: dict[str, Any] = {"prompt_token_ids": request.prompt_token_ids}
        if request.cache_salt is not None:
            prompt["cache_salt"] = request.cache_salt
        params = request.sampling_params
        extra = dict(params.extra_args or {})
        if extra.pop(KEY, None) is not None:
            params = dataclasses.replace(params, extra_args=extra or None)
        return cls(request.request_id, prompt, params, priority)


class Shrinking:
    """Cuts the outputs of one request down to what each gained."""

    def __init__(self, params: SamplingParams) -> None:
        self.is_whole = params.use_beam_search or params.best_of != params.n
        """The winners are known only at the end: there is one output, the last."""
        self.has_begun = False
        self._delta = OutputDelta()

    def cut(self, output: RequestOutput) -> RequestOutput:
        gained = self._delta.since_last(output)
        # The front has the prompt. Its log-probabilities are all known with the first output.
        gained.prompt, gained.prompt_token_ids = None, []
        if self.has_begun:
            gained.prompt_logprobs = None
        self.has_begun = True
        return gained


async def differences(
    outputs: AsyncGenerator[RequestOutput, None], params: SamplingParams
) -> AsyncGenerator[RequestOutput, None]:
    """What each output gained."""
    shrinking = Shrinking(params)
    async with aclosing(outputs) as each:
        async for output in each:
            if output.finished or not shrinking.is_whole:
                yield shrinking.cut(output)


@dataclass
class Growing:
    """Adds differences up to an output that holds everything so far."""

    prompt: str | None
    prompt_token_ids: list[int]
    _newest: RequestOutput | None = None
    _choices: dict[int, CompletionOutput] = field(default_factory=dict)

    def add(self, gained: RequestOutput) -> None:
        for piece in gained.outputs:
            known = self._choices.get(piece.index)
            if known is None:
                self._choices[piece.index] = piece
                continue
            known.text += piece.text
            known.token_ids += piece.token_ids
            if piece.logprobs is not None:
                known.logprobs = [*(known.logprobs or []), *piece.logprobs]
            known.cumulative_logprob = piece.cumulative_logprob
            known.finish_reason, known.stop_reason = piece.finish_reason, piece.stop_reason
        prompt_logprobs = gained.prompt_logprobs
        if self._newest is not None and prompt_logprobs is None:
            prompt_logprobs = self._newest.prompt_logprobs
        self._newest = dataclasses.replace(gained, prompt_logprobs=prompt_logprobs)

    def output(self) -> RequestOutput:
        """Everything so far; what is added later does not change it.

        Raises:
            ValueError: nothing has been added.
        """
        if self._newest is None:
            raise ValueError("differences must have come before an output is asked for, got none")
        choices = [
            dataclasses.replace(choice, token_ids=list(choice.token_ids)) for _, choice in sorted(self._choices.items())
        ]
        return dataclasses.replace(
            self._newest, prompt=self.prompt, prompt_token_ids=self.prompt_token_ids, outputs=choices
        )


class Arriving:
    """An answer on the front, on its way from the engine to its reader. A slow reader gets the newest, and holds no one
    up."""

    def __init__(self, growing: Growing) -> None:
        self.is_over = False
        """The last output is here, or an error."""
        self._growing = growing
        self._news = asyncio.Event()
        self._error: Exception | None = None

    def add(self, gained: RequestOutput) -> None:
        self._growing.add(gained)
        self.is_over = gained.finished
        self._news.set()

    def fail(self, error: Exception) -> None:
        """Unless the last output is here."""
        if not self.is_over:
            self.is_over, self._error = True, error
            self._news.set()

    async def outputs(self) -> AsyncGenerator[RequestOutput, None]:
        finished = False
        while not finished:
            await self._news.wait()
            self._news.clear()
            if self._error is not None:
                raise self._error
            output = self._growing.output()
            finished = output.finished
            yield output
