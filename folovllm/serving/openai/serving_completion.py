"""POST /v1/completions. vLLM: entrypoints/openai/completion/serving.py"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from folovllm.engine.detokenizer import REPLACEMENT, IncrementalDetokenizer
from folovllm.engine.output_processor import fastest_decoder
from folovllm.outputs import Logprob, RequestOutput
from folovllm.serving.openai.background import Check
from folovllm.serving.openai.formatting import ChoiceDelta, finite, prompt_rows, token_text
from folovllm.serving.openai.protocol import CompletionRequest
from folovllm.serving.openai.sampling import to_sampling_params
from folovllm.serving.openai.serving_base import OpenAIServing
from folovllm.serving.openai.serving_engine import ServeContext, ServingEngine

Row = dict[int, Logprob] | None
SHORT = 1000  # characters or tokens of a prompt that is ready before another thread wakes up
LONG = {"structured_outputs", "response_format", "bad_words", "stop_token_ids", "allowed_token_ids", "logit_bias"}
"""Fields that take a time of their own, or hold thousands of entries."""


@dataclass
class Offsets:
    """Where each token of a choice begins in the text that is sent; 0 where there is no text."""

    reader: IncrementalDetokenizer | None
    given: int = 0  # characters in front of what the reader has not given out
    last: int = 0

    def of(self, token_ids: list[int]) -> list[int]:
        """A character that is not complete begins with its first token."""
        found = []
        for token_id in token_ids:
            if self.reader is not None:
                self.last = max(self.last, self.given + len(self.reader.finish().rstrip(REPLACEMENT)))
                self.given += len(self.reader.add(token_id))
            found.append(self.last)
        return found


class CompletionServing(OpenAIServing[CompletionRequest]):
    def __init__(self, serving: ServingEngine) -> None:
        super().__init__(serving, "cmpl", "text_completion", "text_completion")
        self._decoder = None if serving.tokenizer is None else fastest_decoder(serving.tokenizer)

    def is_quick(self, body: CompletionRequest) -> bool:
        return body.is_one and len(body.prompt) <= SHORT and body.model_fields_set.isdisjoint(LONG)

    def make_context(self, body: CompletionRequest, key: str, check: Check) -> ServeContext:
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
        params = to_sampling_params(body, self.serving.defaults, **more)
        work = self.serving.work((self._tokens(prompt, body, check) for prompt in prompts), params, body, key, check)
        work.drop_tokens = body.max_tokens == 0
        return work

    def _tokens(self, prompt: str | list[int], body: CompletionRequest, check: Check) -> dict[str, Any]:
        if not isinstance(prompt, str):
            return {"prompt_token_ids": prompt}
        token_ids = self.serving.tokens_of(prompt, check, add_special_tokens=body.add_special_tokens)
        return {"prompt": prompt, "prompt_token_ids": token_ids}

    def make_answer(
        self, body: CompletionRequest, work: ServeContext, found: list[RequestOutput], check: Check
    ) -> dict[str, Any]:
        choices = [
            self._choice(body, output, (place * work.params.n + choice.index, True, choice), {}, check)
            for place, output in enumerate(found)
            for choice in output.outputs
        ]
        return {"choices": choices, "kv_transfer_params": None}

    def make_chunk(
        self,
        body: CompletionRequest,
        output: RequestOutput,
        gained: ChoiceDelta,
        kept: dict[int, Offsets],
        check: Check,
    ) -> dict[str, Any]:
        return {"choices": [self._choice(body, output, gained, kept, check)]}

    def _choice(
        self,
        body: CompletionRequest,
        output: RequestOutput,
        gained: ChoiceDelta,
        kept: dict[int, Offsets],
        check: Check,
    ) -> dict[str, Any]:
        index, begins, choice = gained
        text, token_ids, rows = choice.text, choice.token_ids, list[Row](choice.logprobs or [])
        if body.max_tokens == 0:
            text, token_ids, rows = "", [], []
        skip, offsets = body.skip_special_tokens is not False, list[int]()
        if begins:
            kept[index] = self._reader(output.prompt_token_ids, skip=skip)
        if body.logprobs is not None:
            offsets = kept[index].of(token_ids)
        if body.echo and begins:
            prompt_text = self._prompt_text(output)
            kept[index].given += len(prompt_text)
            kept[index].last += len(prompt_text)
            if body.logprobs is not None:
                places = self._prompt_offsets(output.prompt_token_ids, prompt_text)
                offsets = [*places, *(len(prompt_text) + offset for offset in offsets)]
            text = prompt_text + text
            token_ids = [*output.prompt_token_ids, *token_ids]
            rows = [*(output.prompt_logprobs or []), *rows]
        logprobs = None
        if body.logprobs is not None:
            logprobs = self._logprobs(token_ids, rows, body, check) | {"text_offset": offsets}
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "prompt_logprobs": None if body.prompt_logprobs is None else prompt_rows(output, check),
            "token_ids": token_ids if body.return_token_ids else None,
            "prompt_token_ids": output.prompt_token_ids if body.return_token_ids and begins else None,
        }

    def _prompt_text(self, output: RequestOutput) -> str:
        if output.prompt is not None:
            return output.prompt
        tokenizer = self.serving.tokenizer
        return "" if tokenizer is None else str(tokenizer.decode(output.prompt_token_ids))

    def _reader(self, prompt_token_ids: list[int], *, skip: bool) -> Offsets:
        if self._decoder is None:
            return Offsets(None)
        return Offsets(IncrementalDetokenizer(self._decoder, prompt_token_ids, skip_special_tokens=skip))

    def _prompt_offsets(self, token_ids: list[int], text: str) -> list[int]:
        """A token in front of the text as it was written, such as BOS, begins where the text does."""
        reader = self._reader([], skip=False)
        offsets = reader.of(token_ids)
        rest = "" if reader.reader is None else reader.reader.finish()
        shift = len(text) - reader.given - len(rest)
        return [max(0, offset + shift) for offset in offsets]

    def _logprobs(self, token_ids: list[int], rows: list[Row], body: CompletionRequest, check: Check) -> dict[str, Any]:
        """In a dict, a second token of one text goes by its id: none that was asked for is left out."""
        as_id, count = self.serving.options.return_tokens_as_token_ids, body.logprobs or 0
        as_id = as_id or bool(body.return_tokens_as_token_ids)
        text_of, tokens = self.serving.token_bytes.text, []
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        for token_id, row in zip(token_ids, rows, strict=True):
            check()
            name = token_text(token_id, text_of(token_id), as_id=as_id)
            if row is None:  # the first token of a prompt: nothing comes before it
                values.append(None)
                tops.append(None)
            else:
                values.append(finite(row[token_id].logprob))
                ranked = sorted(row.items(), key=lambda item: item[1].rank or 0)
                chosen = ranked if count == -1 else ranked[: max(count, 1)]
                top: dict[str, float] = {}
                for other, entry in [*chosen, (token_id, row[token_id])]:
                    other_name = token_text(other, text_of(other), as_id=as_id)
                    if other != token_id and (other_name == name or other_name in top):
                        other_name = token_text(other, None, as_id=True)
                    top[other_name] = finite(entry.logprob)
                tops.append(top)
            tokens.append(name)
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops}


def _prompts(body: CompletionRequest) -> list[str | list[int]]:
    if body.is_one:
        return [body.prompt]  # type: ignore[list-item]
    if not body.prompt:
        raise ValueError("prompt must not be empty, got []")
    return list(body.prompt)  # type: ignore[arg-type]
