"""What goes between the front and an engine elsewhere: a request one way, and what each output gained the other way.

    front                                      engine
    Ask ─────────────────────────────────────▶ a request
    Arriving ◀── [17] ◀── [52, 9] ◀── [301] ◀── Shrinking: what is new of each output
       └─ Text: " B C"

An output holds everything so far, and sent as it is, n tokens would cost n²/2 of them on the wire. So the engine's side
sends differences, and the front adds them up again. A slow reader gets the sum: the tokens wait once, on the front.

The front also makes the text, while the engine computes the next step. Only where stop strings are looked for does the
engine need it itself. What travels are tuples: an object of a dataclass takes several times as long to be pickled.

vLLM: v1/engine/__init__.py (EngineCoreRequest, EngineCoreOutput)
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, NamedTuple

from folovllm.engine.detokenizer import IncrementalDetokenizer, SupportsDecode
from folovllm.engine.input_processor import Checked, Prompt
from folovllm.outputs import CompletionOutput, FinishReason, Logprob, RequestMetrics, RequestOutput
from folovllm.sample.structured.processor import KEY
from folovllm.sampling_params import SamplingParams

_times = attrgetter(*(field.name for field in fields(RequestMetrics)))


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
        """Prompt and parameters as an engine takes them: what was checked is not checked again."""
        return self.prompt, None if isinstance(self.prompt, Checked) else self.params


class Piece(NamedTuple):
    """What a completion gained: text, token_ids and logprobs are what is new of a CompletionOutput's."""

    choice: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class Gained(NamedTuple):
    """What an output gained. `times`: the fields of its RequestMetrics. `prompt_logprobs` are all known with the first
    output, and come with that alone."""

    request_id: str
    outputs: list[Piece]
    finished: bool = False
    num_cached_tokens: int = 0
    times: tuple[Any, ...] | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None


class Shrinking:
    """Cuts the outputs of one request down to what each gained."""

    def __init__(self, params: SamplingParams) -> None:
        self.is_whole = params.use_beam_search or params.best_of != params.n
        """The winners are known only at the end: there is one output, the last."""
        self.has_begun = False
        self._seen: dict[int, tuple[int, int]] = {}  # index -> (characters, tokens)

    def cut(self, output: RequestOutput) -> Gained:
        prompt_logprobs = None if self.has_begun else output.prompt_logprobs
        self.has_begun = True
        times = None if output.metrics is None else _times(output.metrics)
        pieces = [self._cut(whole) for whole in output.outputs]
        return Gained(output.request_id, pieces, output.finished, output.num_cached_tokens, times, prompt_logprobs)

    def _cut(self, whole: CompletionOutput) -> Piece:
        num_chars, num_tokens = self._seen.get(whole.index, (0, 0))
        self._seen[whole.index] = len(whole.text), len(whole.token_ids)
        logprobs = None if whole.logprobs is None else whole.logprobs[num_tokens:]
        return Piece(
            whole.index, whole.text[num_chars:], whole.token_ids[num_tokens:], whole.cumulative_logprob, logprobs,
            whole.finish_reason, whole.stop_reason,
        )  # fmt: skip


async def differences(
    outputs: AsyncGenerator[RequestOutput, None], params: SamplingParams
) -> AsyncGenerator[Gained, None]:
    """What each output gained."""
    shrinking = Shrinking(params)
    async with aclosing(outputs) as each:
        async for output in each:
            if output.finished or not shrinking.is_whole:
                yield shrinking.cut(output)


class Text:
    """The text of one request, on the front."""

    def __init__(self, decoder: SupportsDecode, checked: Checked) -> None:
        self._decoder, self._checked = decoder, checked
        self._detokenizers: dict[int, IncrementalDetokenizer] = {}

    @classmethod
    def of(cls, decoder: SupportsDecode | None, checked: Checked) -> Text | None:
        """None where the engine makes it, or nobody."""
        is_ours = checked.params.detokenize and not checked.params.stop
        return cls(decoder, checked) if decoder is not None and is_ours else None

    def gained(self, piece: Piece) -> str:
        params, token_ids = self._checked.params, piece.token_ids
        if (detokenizer := self._detokenizers.get(piece.choice)) is None:
            detokenizer = self._detokenizers[piece.choice] = IncrementalDetokenizer(
                self._decoder, self._checked.token_ids, skip_special_tokens=params.skip_special_tokens
            )
        if piece.finish_reason == "stop" and not params.include_stop_str_in_output:
            token_ids = token_ids[:-1]  # the stop token itself is not part of the text
        text = detokenizer.add(*token_ids)
        return text if piece.finish_reason is None else text + detokenizer.finish()


class Growing:
    """Adds differences up to an output that holds everything so far. `text`: where it is to be made here."""

    def __init__(self, prompt: str | None, prompt_token_ids: list[int], text: Text | None = None) -> None:
        self.prompt, self.prompt_token_ids, self.text = prompt, prompt_token_ids, text
        self._newest: Gained | None = None
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self._choices: dict[int, CompletionOutput] = {}

    def add(self, gained: Gained) -> None:
        self._newest = gained
        self._prompt_logprobs = gained.prompt_logprobs or self._prompt_logprobs
        for piece in gained.outputs:
            known = self._choices.get(piece.choice)
            if known is None:
                known = self._choices[piece.choice] = CompletionOutput(piece.choice, "", [])
            known.text += piece.text if self.text is None else self.text.gained(piece)
            known.token_ids += piece.token_ids
            if piece.logprobs is not None:
                known.logprobs = [*(known.logprobs or []), *piece.logprobs]
            known.cumulative_logprob = piece.cumulative_logprob
            known.finish_reason, known.stop_reason = piece.finish_reason, piece.stop_reason

    def output(self) -> RequestOutput:
        """Everything so far; what is added later does not change it.

        Raises:
            ValueError: nothing has been added.
        """
        if (newest := self._newest) is None:
            raise ValueError("differences must have come before an output is asked for, got none")
        choices = [
            CompletionOutput(
                index, known.text, [*known.token_ids], known.cumulative_logprob, known.logprobs, known.finish_reason,
                known.stop_reason,
            )
            for index, known in sorted(self._choices.items())
        ]  # fmt: skip
        metrics = None if newest.times is None else RequestMetrics(*newest.times)
        return RequestOutput(
            newest.request_id, self.prompt, self.prompt_token_ids, self._prompt_logprobs, choices, newest.finished,
            metrics, newest.num_cached_tokens,
        )  # fmt: skip


class Arriving:
    """An answer on the front, on its way from the engine to its reader. A slow reader gets the newest, and holds no one
    up."""

    def __init__(self, growing: Growing) -> None:
        self.is_over = False
        """The last output is here, or an error."""
        self._growing = growing
        self._news = asyncio.Event()
        self._error: Exception | None = None

    def add(self, gained: Gained) -> None:
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
