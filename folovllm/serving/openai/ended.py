"""A request that has ended, and the line of the log about it.

    request ended request_id=4f0c… finish_reason=stop prompt_tokens=13 output_tokens=30 … ttft_seconds=0.02 seconds=0.4

vLLM: entrypoints/serve/utils/request_logger.py (RequestLogger)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from folovllm.engine.input_processor import ProcessedInputs
from folovllm.outputs import RequestMetrics, RequestOutput
from folovllm.serving.openai.errors import APIError
from folovllm.utils.logging import init_logger

logger = init_logger(__name__)
logger.setLevel(logging.INFO)  # whatever the others' level: its lines are there only where they are asked for


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """One prompt, when nothing more comes of it. `output`: the last that there was, finished or not. `cut_off` says why
    it has not finished: its client left (abort), or it failed (error). Times are seconds of time.time()."""

    prompt: ProcessedInputs
    arrival_time: float
    output: RequestOutput | None
    cut_off: str

    @property
    def times(self) -> RequestMetrics | None:
        return None if self.output is None else self.output.metrics

    @property
    def finish_reason(self) -> str:
        """Of several sequences each that there is."""
        if self.output is None or not self.output.finished:
            return self.cut_off
        return ",".join(sorted({completion.finish_reason or "abort" for completion in self.output.outputs}))

    @property
    def num_output_tokens(self) -> int | None:
        return None if self.output is None else sum(len(completion.token_ids) for completion in self.output.outputs)


Observer = Callable[[EndedRequest], None]


@contextmanager
def watched(observers: Sequence[Observer], prompts: Sequence[ProcessedInputs]) -> Iterator[dict[int, RequestOutput]]:
    """While these prompts are answered. Into what it yields goes the newest output of each, by its place."""
    arrival, cut_off, newest = time.time(), "abort", dict[int, RequestOutput]()
    try:
        yield newest
    except APIError:
        cut_off = "error"
        raise
    finally:
        for tell in observers:
            for place, prompt in enumerate(prompts):
                tell(EndedRequest(prompt, arrival, newest.get(place), cut_off))


def phases(times: RequestMetrics | None) -> dict[str, float]:
    """What a request spent its time with, in seconds, as far as it is known; the last two when it has finished."""
    if times is None or times.first_scheduled_time is None or times.first_token_time is None:
        return {}
    found = {
        "queue": times.first_scheduled_time - times.arrival_time,
        "prefill": times.first_token_time - times.first_scheduled_time,
    }
    if times.finished_time is not None:
        found["decode"] = times.finished_time - times.first_token_time
        found["inference"] = times.finished_time - times.first_scheduled_time
    return found


def log_request(max_log_len: int | None, ended: EndedRequest) -> None:
    """A line for it. max_log_len: the characters, or token ids, of its texts that are in it; None: no text."""
    output, times, prompt = ended.output, ended.times, ended.prompt
    ttft, e2e = (None, None) if times is None else (times.ttft, times.e2e_latency)
    seconds = {"queue": phases(times).get("queue"), "ttft": ttft, "e2e": e2e or time.time() - ended.arrival_time}
    fields: dict[str, Any] = {
        "finish_reason": ended.finish_reason,
        "prompt_tokens": len(prompt.token_ids),
        "cached_tokens": None if output is None else output.num_cached_tokens,
        "output_tokens": ended.num_output_tokens,
        **{f"{name}_seconds": None if value is None else round(value, 6) for name, value in seconds.items()},
    }
    if max_log_len is not None:
        fields["prompt"] = (prompt.token_ids if prompt.text is None else prompt.text)[:max_log_len]
        completions = output.outputs if output is not None else []
        fields["outputs"] = [completion.text[:max_log_len] for completion in completions]
    logger.info("request ended", extra={"fields": fields})
