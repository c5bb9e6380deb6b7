"""POST /v1/chat/completions. vLLM: entrypoints/openai/chat_completion/serving.py"""

from __future__ import annotations

from typing import Any

from folovllm.outputs import CompletionOutput, Logprob, RequestOutput
from folovllm.serving.openai.answering import Answering
from folovllm.serving.openai.answers import News, finite, prompt_rows, token_text
from folovllm.serving.openai.aside import Check
from folovllm.serving.openai.protocol import ChatRequest
from folovllm.serving.openai.sampling import to_sampling_params
from folovllm.serving.openai.serving import Serving, Work
from folovllm.serving.openai.tool_use import CallReader, ToolUse


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
        use = ToolUse(body, self.serving.tool_parser)
        if use.is_on and use.parser.needs_special_tokens and body.skip_special_tokens is None:
            more["skip_special_tokens"] = False
        params = to_sampling_params(body, self.serving.defaults, **more)
        if form := use.form():
            params.structured_outputs = form
        prompt = self.serving.conversation(body, check, use.shown)
        return self.serving.work([prompt], params, body, key, check, form_of="tools" if form else None)

    def _reader(self, body: ChatRequest) -> CallReader | None:
        """Of a choice's calls; None where none are expected."""
        use = ToolUse(body, self.serving.tool_parser)
        return use.reader() if use.is_on else None

    def make_answer(
        self, body: ChatRequest, work: Work, newest: dict[int, RequestOutput], check: Check
    ) -> dict[str, Any]:
        (output,) = newest.values()
        choices = []
        for choice in output.outputs:
            reader = self._reader(body)
            said = reader.message(choice) if reader else {"content": choice.text}
            message = {
                "role": "assistant",
                **said,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
            }
            choices.append({"index": choice.index, "message": message, **_choice(body, choice, reader, check)})
        token_ids = output.prompt_token_ids if body.return_token_ids else None
        more = {"prompt_logprobs": prompt_rows(output, check), "prompt_token_ids": token_ids}
        return {"choices": choices, **more, "kv_transfer_params": None}

    def make_chunk(
        self, body: ChatRequest, output: RequestOutput, news: News, kept: dict[int, Any], check: Check
    ) -> dict[str, Any] | None:
        index, begins, choice = news
        if begins:
            kept[index] = self._reader(body)
        reader: CallReader | None = kept[index]
        said = reader.delta(choice) if reader else {"content": choice.text}
        delta = {"role": "assistant", **said} if begins else said
        if not (delta or choice.finished() or body.logprobs or body.return_token_ids):
            return None  # a part of a marker, or of what may be one
        chunk: dict[str, Any] = {"choices": [{"index": index, "delta": delta, **_choice(body, choice, reader, check)}]}
        if body.return_token_ids:
            chunk["prompt_token_ids"] = output.prompt_token_ids if begins else None
        return chunk


def _choice(body: ChatRequest, choice: CompletionOutput, reader: CallReader | None, check: Check) -> dict[str, Any]:
    return {
        "logprobs": _logprobs(choice, body, check),
        "finish_reason": reader.finish_reason(choice) if reader else choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "token_ids": choice.token_ids if body.return_token_ids else None,
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
