"""What goes between the front and an engine elsewhere: a request one way, and what each output gained the other way.

    front                                   engine
    Ask ──────────────────────────────────▶ a request
    Arriving ◀── [17] ◀── [52, 9] ◀── [30]  Shrinking: what is new of each output
       └─ Text: " B C"

An output holds everything so far, and sent as it is, n tokens would cost n²/2 of them on the wire. So the engine's side
sends differences, and the front adds them up again. A slow reader gets the sum: the tokens wait once, on the front.
There they also become text, while the engine computes. It makes the text itself only where it looks for stop strings.

vLLM: v1/engine/__init__.py (EngineCoreRequest, EngineCoreOutput)
"""

from __future__ import annotations

import asyncio
import copy
import copyreg
import dataclasses
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from folovllm.engine.detokenizer import IncrementalDetokenizer, SupportsDecode
from folovllm.engine.input_processor import Checked, Prompt
from folovllm.engine.stream import OutputDelta
from folovllm.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from folovllm.sample.structured.processor import KEY
from folovllm.sampling_params import SamplingParams

# Of a dataclass pickle asks for each field by Python code. As calls with all fields they take about half the time.
for _kind in (RequestOutput, CompletionOutput, RequestMetrics, Logprob):
    _values = attrgetter(*(each.name for each in dataclasses.fields(_kind)))
    copyreg.pickle(_kind, lambda made, kind=_kind, values=_values: (kind, values(made)))  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that has been checked. A compiled form does not travel: what it was compiled from does."""

    request_id: str
    prompt: Prompt
    params: SamplingParams
    priority: int

    @classmethod
    def of(cls, request_id: str, checked: Checked, priority: int) -> Ask:
        params, salt = copy.copy(checked.params), checked.cache_salt
        params.detokenize &= bool(params.stop)  # else Text makes it
        extra = dict(params.extra_args or {})
        if extra.pop(KEY, None) is None:
            return cls(request_id, Checked(None, checked.token_ids, params, salt), params, priority)
        params.extra_args = extra or None
        prompt: dict[str, Any] = {"prompt_token_ids": checked.token_ids}
        return cls(request_id, prompt if salt is None else {**prompt, "cache_salt": salt}, params, priority)

    def given(self) -> tuple[Prompt, SamplingParams | None]:
        """Prompt and parameters, as an engine takes them: what has been checked is not checked again."""
        return self.prompt, None if isinstance(self.prompt, Checked) else self.params


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


class Text:
    """The text of one request, made on the front."""

    def __init__(self, decoder: SupportsDecode, checked: Checked) -> None:
        self._decoder, self._checked = decoder, checked
        self._detokenizers: dict[int, IncrementalDetokenizer] = {}  # by completion

    @classmethod
    def of(cls, decoder: SupportsDecode | None, checked: Checked) -> Text | None:
        """None where the engine makes it, or nobody."""
        is_ours = checked.params.detokenize and not checked.params.stop
        return cls(decoder, checked) if decoder is not None and is_ours else None

    def gained(self, piece: CompletionOutput) -> str:
        params, token_ids = self._checked.params, piece.token_ids
        if (detokenizer := self._detokenizers.get(piece.index)) is None:
            detokenizer = self._detokenizers[piece.index] = IncrementalDetokenizer(
                self._decoder, self._checked.token_ids, skip_special_tokens=params.skip_special_tokens
            )
        if piece.finish_reason == "stop" and not params.include_stop_str_in_output:
            token_ids = token_ids[:-1]  # the stop token itself is not part of the text
        text = detokenizer.add(*token_ids)
        return text if piece.finish_reason is None else text + detokenizer.finish()


@dataclass
class Growing:
    """Adds differences up to an output that holds everything so far. `text`: where it is to be made here."""

    prompt: str | None
    prompt_token_ids: list[int]
    text: Text | None = None
    _newest: RequestOutput | None = None
    _choices: dict[int, CompletionOutput] = field(default_factory=dict)

    def add(self, gained: RequestOutput) -> None:
        for piece in gained.outputs:
            if self.text is not None:
                piece.text = self.text.gained(piece)
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
