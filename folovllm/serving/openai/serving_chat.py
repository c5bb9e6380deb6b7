"""POST /v1/chat/completions. vLLM: entrypoints/openai/chat_completion/serving.py"""

from __future__ import annotations

from typing import Any

from folovllm.outputs import CompletionOutput, Logprob, RequestOutput
from folovllm.serving.openai.answering import Answering
from folovllm.serving.openai.answers import News, finite, prompt_rows, token_text
from folovllm.serving.openai.aside import Check
from folovllm.serving.openai.protocol import ChatRequest
from folovllm.serving.openai.serving import Serving, Work


class ChatServing(Answering[ChatRequest]):
    def __init__(self, serving: Serving) -> None:
        super().__init__(serving, "chatcmpl", "chat.completion", "chat.completion.chunk")

    def make_work(self, body: ChatRequest, key: str, check: Check) -> Work:
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
        return self.serving.work([self.serving.conversation(body, check)], params, body, key, check)

    def make_answer(
        self, body: ChatRequest, work: Work, newest: dict[int, RequestOutput], check: Check
    ) -> dict[str, Any]:
        (output,) = newest.values()
        choices = [
            {
                "index": choice.index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                **_choice(body, choice, check),
            }
            for choice in output.outputs
        ]
        more: dict[str, Any] = {} if body.prompt_logprobs is None else {"prompt_logprobs": prompt_rows(output, check)}
        if body.return_token_ids:
            more["prompt_token_ids"] = output.prompt_token_ids
        return {"choices": choices, **more}

    def make_chunk(
        self, body: ChatRequest, output: RequestOutput, news: News, ends: dict[int, int], check: Check
    ) -> dict[str, Any]:
        index, begins, choice = news
        delta = {"role": "assistant", "content": choice.text} if begins else {"content": choice.text}
        chunk: dict[str, Any] = {"choices": [{"index": index, "delta": delta, **_choice(body, choice, check)}]}
        if body.return_token_ids:
            chunk["prompt_token_ids"] = output.prompt_token_ids if begins else None
        return chunk


def _choice(body: ChatRequest, choice: CompletionOutput, check: Check) -> dict[str, Any]:
    return {
        "logprobs": _logprobs(choice, body, check),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        **({"token_ids": choice.token_ids} if body.return_token_ids else {}),
    }


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
