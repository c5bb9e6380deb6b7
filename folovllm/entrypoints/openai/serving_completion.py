"""POST /v1/completions. vLLM: entrypoints/openai/completion/serving.py"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from folovllm.engine.stream import check_can_stream
from folovllm.entrypoints.openai.answers import (
    Chunks,
    News,
    encoded,
    finite,
    head,
    prompt_rows,
    size,
    token_text,
    usage,
)
from folovllm.entrypoints.openai.aside import Check
from folovllm.entrypoints.openai.protocol import CompletionRequest
from folovllm.entrypoints.openai.serving import Serving, Work
from folovllm.entrypoints.openai.streams import Burst, made
from folovllm.outputs import CompletionOutput, Logprob, RequestOutput

Row = dict[int, Logprob] | None


class CompletionServing:
    def __init__(self, serving: Serving) -> None:
        self.serving = serving

    async def work(self, body: CompletionRequest, key: str) -> Work:
        """Raises APIError: what is wrong with the request, by the field's name."""
        self.serving.check_model(body.model)
        return await self.serving.prepare(lambda check: self._work(body, key, check))

    def _work(self, body: CompletionRequest, key: str, check: Check) -> Work:
        prompts = _prompts(body)
        max_tokens = body.max_tokens
        if max_tokens == 0:
            if not body.echo:
                raise ValueError("max_tokens must be at least 1, got 0; 0 needs echo=true")
            max_tokens = 1  # the engine generates at least one token, which is left out of the answer
        more: dict[str, Any] = {"max_tokens": max_tokens, "logprobs": body.logprobs}
        if body.echo and body.logprobs is not None:
            if body.prompt_logprobs not in (None, body.logprobs):
                raise ValueError(
                    f"prompt_logprobs must agree with logprobs under echo, got {body.prompt_logprobs} and "
                    f"{body.logprobs}; give logprobs alone"
                )
            more["prompt_logprobs"] = body.logprobs
        params = self.serving.params(body, **more)
        if body.stream:
            check_can_stream(params)
        elif body.stream_options is not None:
            raise ValueError("stream_options must not be given without stream=true")
        return self.serving.work((self._tokens(prompt, body, check) for prompt in prompts), params, body, key, check)

    def _tokens(self, prompt: str | list[int], body: CompletionRequest, check: Check) -> dict[str, Any]:
        if not isinstance(prompt, str):
            return {"prompt_token_ids": prompt}
        token_ids = self.serving.tokens_of(prompt, check, add_special_tokens=body.add_special_tokens)
        return {"prompt": prompt, "prompt_token_ids": token_ids}

    async def whole(self, body: CompletionRequest, work: Work) -> bytes:
        newest: dict[int, RequestOutput] = {}
        async with aclosing(self.serving.outputs(work)) as outputs:
            async for place, output in outputs:
                newest[place] = output
        return await self.serving.aside.run(lambda check: encoded(self._whole(body, work, newest, check), check))

    def _whole(
        self, body: CompletionRequest, work: Work, newest: dict[int, RequestOutput], check: Check
    ) -> dict[str, Any]:
        choices = [
            self._choice(body, output, place * work.params.n + choice.index, choice, check, begins=True)
            for place, output in sorted(newest.items())
            for choice in output.outputs
        ]
        for choice in choices:
            if choice["logprobs"] is not None:
                _shift(choice["logprobs"], 0)
        start = head("cmpl", "text_completion", self.serving.model_name)
        counted = usage((newest[place] for place in sorted(newest)), drop_tokens=body.max_tokens == 0)
        return {**start, "choices": choices, "usage": counted}

    async def chunks(self, body: CompletionRequest, work: Work) -> AsyncGenerator[Burst, None]:
        start = head("cmpl", "text_completion", self.serving.model_name)
        options = body.stream_options
        chunks, ends = Chunks(work.params.n, len(work.prompts)), dict[int, int]()
        async with aclosing(self.serving.outputs(work)) as outputs:
            async for place, output in outputs:
                news = list(chunks.news(place, output))
                asks = chunks.are_over() and options is not None and options.include_usage
                total = usage(chunks.newest.values(), drop_tokens=body.max_tokens == 0) if asks else None
                if news or total is not None:
                    make = partial(self._burst, body, output, news, start, ends, total, chunks.are_over())
                    yield await made(make, self.serving.aside, size(news, output if body.echo else None))

    def _burst(
        self,
        body: CompletionRequest,
        output: RequestOutput,
        news: list[News],
        start: dict[str, Any],
        ends: dict[int, int],
        total: dict[str, Any] | None,
        is_last: bool,
        check: Check,
    ) -> Burst:
        """`ends`: where the text of each choice ended so far."""
        events: list[dict[str, Any]] = []
        options = body.stream_options
        for index, begins, choice in news:
            entry = self._choice(body, output, index, choice, check, begins=begins)
            if entry["logprobs"] is not None:
                ends[index] = _shift(entry["logprobs"], ends.get(index, 0))
            counted = usage([output]) if options and options.continuous_usage_stats else None
            events.append({**start, "choices": [entry], "usage": counted})
        if total is not None:
            events.append({**start, "choices": [], "usage": total})
        return Burst.of(events, is_last, check)

    def _choice(
        self,
        body: CompletionRequest,
        output: RequestOutput,
        index: int,
        choice: CompletionOutput,
        check: Check,
        *,
        begins: bool,
    ) -> dict[str, Any]:
        text, token_ids, rows = choice.text, choice.token_ids, list[Row](choice.logprobs or [])
        if body.max_tokens == 0:
            text, token_ids, rows = "", [], []
        if body.echo and begins:
            text = self._prompt_text(output) + text
            token_ids = [*output.prompt_token_ids, *token_ids]
            rows = [*(output.prompt_logprobs or []), *rows]
        made: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": None if body.logprobs is None else self._logprobs(token_ids, rows, body, check),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if body.prompt_logprobs is not None:
            made["prompt_logprobs"] = prompt_rows(output, check)
        if body.return_token_ids:
            made["token_ids"] = token_ids
            made["prompt_token_ids"] = output.prompt_token_ids if begins else None
        return made

    def _prompt_text(self, output: RequestOutput) -> str:
        if output.prompt is not None:
            return output.prompt
        tokenizer = self.serving.tokenizer
        return "" if tokenizer is None else str(tokenizer.decode(output.prompt_token_ids))

    def _logprobs(self, token_ids: list[int], rows: list[Row], body: CompletionRequest, check: Check) -> dict[str, Any]:
        """`text_offset` has one entry more than there are tokens: where the text ends. _shift() takes it off."""
        as_id, count = bool(body.return_tokens_as_token_ids), body.logprobs or 0
        tokens, offsets = [], [0]
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        for token_id, row in zip(token_ids, rows, strict=True):
            check()
            if row is None:  # the first token of a prompt: nothing comes before it
                text = "" if self.serving.tokenizer is None else str(self.serving.tokenizer.decode([token_id]))
                values.append(None)
                tops.append(None)
            else:
                text = row[token_id].decoded_token or ""
                values.append(finite(row[token_id].logprob))
                ranked = sorted(row.items(), key=lambda item: item[1].rank or 0)
                chosen = ranked if count == -1 else ranked[: max(count, 1)]
                top: dict[str, float] = {}
                for other, entry in [*chosen, (token_id, row[token_id])]:
                    top.setdefault(token_text(other, entry.decoded_token, as_id=as_id), finite(entry.logprob))
                tops.append(top)
            tokens.append(token_text(token_id, text, as_id=as_id))
            offsets.append(offsets[-1] + len(text))
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


def _shift(logprobs: dict[str, Any], begin: int) -> int:
    """Let the offsets count from the beginning of the whole text, of which `begin` characters came before. Returns
    where it ends."""
    *offsets, end = (offset + begin for offset in logprobs["text_offset"])
    logprobs["text_offset"] = offsets
    return int(end)


def _prompts(body: CompletionRequest) -> list[str | list[int]]:
    prompt = body.prompt
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return [prompt]
    if not prompt:
        raise ValueError("prompt must not be empty, got []")
    return list(prompt)  # type: ignore[arg-type]
