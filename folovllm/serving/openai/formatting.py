"""Responses as JSON: their first fields, usage, log-probabilities, and what is new of each choice for a chunk.

vLLM: entrypoints/openai/chat_completion/serving.py
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from folovllm.outputs import LEAST_LOGPROB, CompletionOutput, Logprob, RequestOutput
from folovllm.serving.openai.background import Check, at_once

ChoiceDelta = tuple[int, bool, CompletionOutput]
"""Index of a choice, whether this is its first, and what it gained."""
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_DEPTH = 5
"""An answer, its choices, one of them, its log-probabilities: at the fifth level is a row of them, of one token."""
_OF_A_CHOICE = 2
"""Values, by the time that its fields take."""


def encoded(answer: dict[str, Any], check: Check) -> bytes:
    """The answer as JSON, a row after the other: one call for all of it would let no other thread run until its end."""
    if check is at_once:
        return _encode(answer).encode()
    parts: list[str] = []
    _add(parts, answer, _DEPTH, check)
    return "".join(parts).encode()


def _add(parts: list[str], value: Any, depth: int, check: Check) -> None:
    is_list = isinstance(value, list) and any(isinstance(each, (dict, list)) for each in value)
    if not depth or not value or not (is_list or isinstance(value, dict)):
        check()
        parts.append(_encode(value))
        return
    before = "[" if is_list else "{"
    for each in value:
        parts.append(before if is_list else f"{before}{_encode(each)}:")
        _add(parts, each if is_list else value[each], depth - 1, check)
        before = ","
    parts.append("]" if is_list else "}")


def head(prefix: str, kind: str, model: str, name: str | None = None) -> dict[str, Any]:
    """name: the request's, where its client has named it."""
    start = {"id": f"{prefix}-{name or uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}
    return {**start, "service_tier": None, "system_fingerprint": None}


def usage(outputs: Iterable[RequestOutput], *, drop_tokens: bool = False) -> dict[str, Any]:
    """drop_tokens: what was generated is not given out."""
    known = list(outputs)
    prompt = sum(len(output.prompt_token_ids) for output in known)
    generated = 0 if drop_tokens else sum(len(choice.token_ids) for output in known for choice in output.outputs)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": sum(output.num_cached_tokens for output in known)},
    }


def size(deltas: list[ChoiceDelta], echoed: RequestOutput | None = None) -> int:
    """About how many values there are to write: choices, log-probabilities, and characters where there are many."""
    total = len(deltas) * _OF_A_CHOICE
    for _, begins, choice in deltas:
        total += len(choice.text) // 10 + _num_values(choice.logprobs)
        if begins and echoed is not None:
            total += len(echoed.prompt_token_ids) + _num_values(echoed.prompt_logprobs)
    return total


def _num_values(rows: Sequence[dict[int, Logprob] | None] | None) -> int:
    return len(rows) * len(rows[-1] or ()) if rows else 0


def token_text(token_id: int, text: str | None, *, as_id: bool) -> str:
    """How an answer calls a token. Two tokens may have one text, and half a character has none."""
    return f"token_id:{token_id}" if as_id else text or ""


def finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


def prompt_rows(output: RequestOutput, check: Check) -> list[dict[str, dict[str, Any]] | None] | None:
    """`prompt_logprobs` as JSON: {token id: its log-probability, rank and text} for each token of the prompt."""
    if output.prompt_logprobs is None:
        return None
    rows: list[dict[str, dict[str, Any]] | None] = []
    for row in output.prompt_logprobs:
        check()
        rows.append(None if row is None else {str(token_id): _plain(entry) for token_id, entry in row.items()})
    return rows


def _plain(entry: Logprob) -> dict[str, Any]:
    return {"logprob": finite(entry.logprob), "rank": entry.rank, "decoded_token": entry.decoded_token}


@dataclass
class Chunks:
    """Cuts outputs, which hold everything so far, into what is new of each choice."""

    n: int
    num_prompts: int
    newest: dict[int, RequestOutput] = field(default_factory=dict)
    _seen: dict[int, tuple[int, int]] = field(default_factory=dict)  # index -> (characters, tokens)
    _ended: set[int] = field(default_factory=set)

    def are_over(self) -> bool:
        """Whether nothing more comes, of any prompt."""
        return len(self.newest) == self.num_prompts and all(output.finished for output in self.newest.values())

    def deltas(self, place: int, output: RequestOutput) -> Iterator[ChoiceDelta]:
        """Of each choice that gained something."""
        self.newest[place] = output
        for whole in output.outputs:
            index = place * self.n + whole.index
            begins = index not in self._seen
            num_chars, num_tokens = self._seen.get(index, (0, 0))
            ends = whole.finish_reason is not None and index not in self._ended
            if not (ends or len(whole.text) > num_chars or len(whole.token_ids) > num_tokens):
                continue
            self._seen[index] = len(whole.text), len(whole.token_ids)
            if ends:
                self._ended.add(index)
            yield (
                index,
                begins,
                CompletionOutput(  # dataclasses.replace() takes ten times as long, for each token of each stream
                    index=whole.index,
                    text=whole.text[num_chars:],
                    token_ids=whole.token_ids[num_tokens:],
                    cumulative_logprob=whole.cumulative_logprob,
                    logprobs=None if whole.logprobs is None else whole.logprobs[num_tokens:],
                    finish_reason=whole.finish_reason,
                    stop_reason=whole.stop_reason,
                ),
            )
