"""POST /v1/chat/completions. vLLM: entrypoints/openai/chat_completion/serving.py"""

from __future__ import annotations

from typing import Any

from folovllm.outputs import CompletionOutput, Logprob, RequestOutput
from folovllm.serving.openai.background import Check
from folovllm.serving.openai.errors import naming
from folovllm.serving.openai.formatting import ChoiceDelta, finite, prompt_rows, token_text
from folovllm.serving.openai.protocol import ChatRequest
from folovllm.serving.openai.sampling import to_sampling_params
from folovllm.serving.openai.serving_base import OpenAIServing
from folovllm.serving.openai.serving_engine import ServeContext, ServingEngine
from folovllm.serving.openai.tool_use import MessageReader, ToolUse
from folovllm.serving.reasoning import ReasoningParser, Thinks, whether_it_thinks
from folovllm.utils.logging import init_logger

logger = init_logger(__name__)

_UNUSED = dict.fromkeys(("annotations", "audio", "function_call"))
"""Fields that OpenAI's messages have, for what this engine does not do."""


class ChatServing(OpenAIServing[ChatRequest]):
    def __init__(self, serving: ServingEngine) -> None:
        super().__init__(serving, "chatcmpl", "chat.completion", "chat.completion.chunk")
        self._has_warned = False

    def make_context(self, body: ChatRequest, key: str, check: Check) -> ServeContext:
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
        use = self.tool_use(body)
        needs_special = use.parser is not None and use.parser.needs_special_tokens
        if (needs_special or self.serving.thinks_in_special_tokens) and body.skip_special_tokens is None:
            more["skip_special_tokens"] = False
        names = {"logprobs": "top_logprobs"} if body.top_logprobs is not None else {}
        if body.max_tokens is None:
            names["max_tokens"] = "max_completion_tokens"
        with naming(names):
            return self._context(body, key, check, use, more)

    def _context(self, body: ChatRequest, key: str, check: Check, use: ToolUse, more: dict[str, Any]) -> ServeContext:
        params = to_sampling_params(body, self.serving.defaults, **more)
        if form := use.form():
            params.structured_outputs = form
        prompt = self.serving.conversation(body, check, use.shown)
        if form is None and use.is_on and use.parser is None:
            self._warn_of_unread_calls()
        thinks = self._thinks(body, prompt["prompt"])
        return self.serving.work([prompt], params, body, key, check, "tools" if form else None, thinks)

    def _warn_of_unread_calls(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "tools with tool_choice 'auto': this model's chat template does not tell how it writes calls, so that "
                "they are passed on as text; serve with --tool-call-parser if it has learnt a format"
            )

    def tool_use(self, body: ChatRequest) -> ToolUse:
        return ToolUse(body, self.serving.tool_parser, self.serving.added_tokens)

    def _thinks(self, body: ChatRequest, prompt: str | None) -> Thinks:
        if self.serving.reasoning_parser is None:
            return "no"
        last = None
        if body.continue_final_message and body.messages:
            content = body.messages[-1].content
            last = content if isinstance(content, str) else "\n".join(part.text for part in content or ())
        return whether_it_thinks(self.serving.reasoning_parser, prompt or "", last)

    def reader(self, body: ChatRequest, output: RequestOutput) -> MessageReader:
        """Of one choice."""
        is_known = self.serving.reasoning_parser is not None
        reasoning = ReasoningParser(self._thinks(body, output.prompt)) if is_known else None
        return MessageReader(self.tool_use(body), reasoning)

    def make_answer(
        self, body: ChatRequest, work: ServeContext, found: list[RequestOutput], check: Check
    ) -> dict[str, Any]:
        (output,) = found
        choices = []
        for choice in output.outputs:
            reader = self.reader(body, output)
            message = {"role": self.serving.options.response_role, **reader.message(choice), "refusal": None, **_UNUSED}
            choices.append({"index": choice.index, "message": message, **self._choice(body, choice, reader, check)})
        token_ids = output.prompt_token_ids if body.return_token_ids else None
        more = {"prompt_logprobs": prompt_rows(output, check), "prompt_token_ids": token_ids}
        return {"choices": choices, **more, "kv_transfer_params": None}

    def make_chunk(
        self, body: ChatRequest, output: RequestOutput, gained: ChoiceDelta, kept: dict[int, Any], check: Check
    ) -> dict[str, Any] | None:
        index, begins, choice = gained
        if begins:
            kept[index] = self.reader(body, output)
        reader: MessageReader = kept[index]
        said = reader.delta(choice)
        delta = {"role": self.serving.options.response_role, **said} if begins else said
        if not (delta or choice.finished() or body.logprobs or body.return_token_ids):
            return None  # a part of a marker, or of what may be one
        part = {"index": index, "delta": delta, **self._choice(body, choice, reader, check)}
        chunk: dict[str, Any] = {"choices": [part]}
        if body.return_token_ids:
            chunk["prompt_token_ids"] = output.prompt_token_ids if begins else None
        return chunk

    def _choice(
        self, body: ChatRequest, choice: CompletionOutput, reader: MessageReader, check: Check
    ) -> dict[str, Any]:
        return {
            "logprobs": self._logprobs(choice, body, check),
            "finish_reason": reader.finish_reason(choice),
            "stop_reason": choice.stop_reason,
            "token_ids": choice.token_ids if body.return_token_ids else None,
        }

    def _logprobs(self, choice: CompletionOutput, body: ChatRequest, check: Check) -> dict[str, Any] | None:
        if not body.logprobs or choice.logprobs is None:
            return None
        content, as_id = [], bool(body.return_tokens_as_token_ids) or self.serving.options.return_tokens_as_token_ids
        for token_id, row in zip(choice.token_ids, choice.logprobs, strict=True):
            check()
            ranked = sorted(row.items(), key=lambda item: item[1].rank or 0)[: body.top_logprobs or 0]
            tops = [self._entry(other, entry, as_id=as_id) for other, entry in ranked]
            content.append({**self._entry(token_id, row[token_id], as_id=as_id), "top_logprobs": tops})
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, entry: Logprob, *, as_id: bool) -> dict[str, Any]:
        known = self.serving.token_bytes
        token = token_text(token_id, known.text(token_id), as_id=as_id)
        return {"token": token, "logprob": finite(entry.logprob), "bytes": list(known.of(token_id))}
