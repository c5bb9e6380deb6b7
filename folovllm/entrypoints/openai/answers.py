"""Pieces that answers of both kinds have: their head, their usage, and which choices are due for a chunk.

vLLM: entrypoints/openai/chat_completion/serving.py
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from folovllm.engine.stream import OutputDelta
from folovllm.outputs import CompletionOutput, RequestOutput


def head(prefix: str, kind: str, model: str) -> dict[str, Any]:
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


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


@dataclass
class Chunks:
    """Cuts outputs, which hold everything so far, into what is new of each choice."""

    n: int
    newest: dict[int, RequestOutput] = field(default_factory=dict)
    _deltas: dict[int, OutputDelta] = field(default_factory=dict)
    _begun: set[int] = field(default_factory=set)
    _ended: set[int] = field(default_factory=set)

    def news(self, place: int, output: RequestOutput) -> Iterator[tuple[int, bool, CompletionOutput]]:
        """(index of the choice, whether it begins, what it gained) of each choice with news."""
        self.newest[place] = output
        for choice in self._deltas.setdefault(place, OutputDelta()).since_last(output).outputs:
            index = place * self.n + choice.index
            ends = choice.finish_reason is not None and index not in self._ended
            if not (choice.text or choice.token_ids or ends):
                continue
            begins = index not in self._begun
            self._begun.add(index)
            if ends:
                self._ended.add(index)
            yield index, begins, choice
