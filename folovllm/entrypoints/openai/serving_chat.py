"""POST /v1/chat/completions. vLLM: entrypoints/openai/chat_completion/serving.py"""

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
from folovllm.entrypoints.openai.protocol import ChatRequest
from folovllm.entrypoints.openai.serving import Serving, Work
from folovllm.entrypoints.openai.streams import Burst, made
from folovllm.outputs import CompletionOutput, Logprob, RequestOutput


class ChatServing:
    def __init__(self, serving: Serving) -> None:
        self.serving = serving

    async def work(self, body: ChatRequest, key: str) -> Work:
        """Raises APIError: what is wrong with the request, by the field's name."""
        self.serving.check_model(body.model)
        return await self.serving.prepare(lambda check: self._work(body, key, check))

    def _work(self, body: ChatRequest, key: str, check: Check) -> Work:
        more: dict[str, Any] = {}
        limits = {limit for limit in (body.max_tokens, body.max_completion_tokens) if limit is not None}
        if len(limits) > 1:
            raise ValueError(
                f"max_tokens must agree with max_completion_tokens, got {sorted(limits)}; give one of them"
            )
        if limits:
            more["max_tokens"] = limits.pop()
        elif "max_tokens" not in self.serving.defaults:
            more["max_tokens"] = None  # up to the model's length
        if body.top_logprobs is not None and not body.logprobs:
            raise ValueError(f"top_logprobs must not be given without logprobs=true, got {body.top_logprobs}")
        if body.logprobs:
            more["logprobs"] = body.top_logprobs or 0
        params = self.serving.params(body, **more)
        if body.stream:
            check_can_stream(params)
        elif body.stream_options is not None:
            raise ValueError("stream_options must not be given without stream=true")
        return self.serving.work([self.serving.conversation(body, check)], params, body, key, check)

    async def whole(self, body: ChatRequest, work: Work) -> bytes:
        output: RequestOutput | None = None
        async with aclosing(self.serving.outputs(work)) as outputs:
            async for _, newest in outputs:
                output = newest
        assert output is not None  # the last one is finished, or there was an error
        last = output
        return await self.serving.aside.run(lambda check: encoded(self._whole(body, last, check), check))

    def _whole(self, body: ChatRequest, output: RequestOutput, check: Check) -> dict[str, Any]:
        choices = [
            {
                "index": choice.index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": _logprobs(choice, body, check),
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
                **({"token_ids": choice.token_ids} if body.return_token_ids else {}),
            }
            for choice in output.outputs
        ]
        start = head("chatcmpl", "chat.completion", self.serving.model_name)
        more: dict[str, Any] = {} if body.prompt_logprobs is None else {"prompt_logprobs": prompt_rows(output, check)}
        if body.return_token_ids:
            more["prompt_token_ids"] = output.prompt_token_ids
        return {**start, "choices": choices, "usage": usage([output]), **more}

    async def chunks(self, body: ChatRequest, work: Work) -> AsyncGenerator[Burst, None]:
        start = head("chatcmpl", "chat.completion.chunk", self.serving.model_name)
        options = body.stream_options
        chunks = Chunks(work.params.n, len(work.prompts))
        async with aclosing(self.serving.outputs(work)) as outputs:
            async for place, output in outputs:
                news = list(chunks.news(place, output))
                asks = chunks.are_over() and options is not None and options.include_usage
                total = usage(chunks.newest.values()) if asks else None
                if news or total is not None:
                    make = partial(_burst, body, output, news, start, total, chunks.are_over())
                    yield await made(make, self.serving.aside, size(news))


def _burst(
    body: ChatRequest,
    output: RequestOutput,
    news: list[News],
    start: dict[str, Any],
    total: dict[str, Any] | None,
    is_last: bool,
    check: Check,
) -> Burst:
    events: list[dict[str, Any]] = []
    options = body.stream_options
    for index, begins, choice in news:
        delta = {"role": "assistant", "content": choice.text} if begins else {"content": choice.text}
        entry = {
            "index": index,
            "delta": delta,
            "logprobs": _logprobs(choice, body, check),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        counted = usage([output]) if options and options.continuous_usage_stats else None
        chunk = {**start, "choices": [entry], "usage": counted}
        if body.return_token_ids:
            entry["token_ids"] = choice.token_ids
            chunk["prompt_token_ids"] = output.prompt_token_ids if begins else None
        events.append(chunk)
    if total is not None:
        events.append({**start, "choices": [], "usage": total})
    return Burst.of(events, is_last, check)


def _logprobs(choice: CompletionOutput, body: ChatRequest, check: Check) -> dict[str, Any] | None:
    if not body.logprobs or choice.logprobs is None:
        return None
    content, as_id = [], bool(body.return_tokens_as_token_ids)
    for token_id, row in zip(choice.token_ids, choice.logprobs, strict=True):
        check()
        ranked = sorted(row.items(), key=lambda item: item[1].rank or 0)[: body.top_logprobs or 0]
        tops = [_entry(other, entry, as_id=as_id) for other, entry in ranked]
        content.append({**_entry(token_id, row[token_id], as_id=as_id), "top_logprobs": tops})
    return {"content": content, "refusal": None}


def _entry(token_id: int, entry: Logprob, *, as_id: bool) -> dict[str, Any]:
    text = entry.decoded_token or ""
    token = token_text(token_id, text, as_id=as_id)
    return {"token": token, "logprob": finite(entry.logprob), "bytes": list(text.encode())}
