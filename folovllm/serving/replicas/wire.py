"""What goes between the front and a replica: a request one way, and what each output gained the other way.

    front                                  replica
    Ask ─────────────────────────────────▶ AsyncLLM.generate()
    Growing ◀── "A" ◀── " B" ◀── " C" ◀──  what is new of each output

An output holds everything so far, and sent as it is, n tokens would cost n²/2 of them on the wire. So the replica sends
differences, and the front adds them up again. A slow reader gets the sum: the tokens wait once, on the front.

vLLM: v1/engine/__init__.py (EngineCoreRequest, EngineCoreOutput)
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from folovllm.engine.stream import OutputDelta
from folovllm.outputs import CompletionOutput, RequestOutput
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
    def of(cls, request_id: str, prompt: dict[str, Any], params: SamplingParams, priority: int) -> Ask:
        extra = dict(params.extra_args or {})
        if extra.pop(KEY, None) is not None:
            params = dataclasses.replace(params, extra_args=extra or None)
        return cls(request_id, prompt, params, priority)


async def differences(
    outputs: AsyncGenerator[RequestOutput, None], params: SamplingParams
) -> AsyncGenerator[RequestOutput, None]:
    """What each output gained. Where the winners are known only at the end, there is one, the last."""
    whole = params.use_beam_search or params.best_of != params.n
    delta, has_begun = OutputDelta(), False
    async with aclosing(outputs) as each:
        async for output in each:
            if whole and not output.finished:
                continue
            gained = delta.since_last(output)
            # The front has the prompt. Its log-probabilities are all known with the first output.
            yield dataclasses.replace(
                gained, prompt=None, prompt_token_ids=[], prompt_logprobs=None if has_begun else gained.prompt_logprobs
            )
            has_begun = True


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
