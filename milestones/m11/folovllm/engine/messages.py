"""What goes between a client and the engine's core, in one process or between two.

    client  ── EngineCoreRequest: token ids, parameters ──▶  core
            ◀── EngineCoreOutputs: the new token ids of a step ──

The core computes with token ids: the client makes them of text, and text of them. A prompt's text is there for traces.

vLLM: v1/engine/__init__.py
"""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, NamedTuple

from folovllm.config import EngineConfig
from folovllm.core.scheduler import Scheduler
from folovllm.engine.input_processor import ProcessedInputs, Prompt
from folovllm.outputs import FinishReason
from folovllm.sample.structured.processor import KEY
from folovllm.sampling_params import SamplingParams
from folovllm.worker.model_runner_output import LogprobsRow

Key = int | str
"""A client's name for a request. Where messages travel it is a number, and not the request's id: that may be used again
while messages about the request that had it before are still on their way."""


class EngineCoreRequestType(Enum):
    """Each with its arguments."""

    ADD = auto()  # an EngineCoreRequest
    ABORT = auto()  # the request's key, its id, and the index of a sequence that is to end, or None: the request
    RESET_PREFIX_CACHE = auto()
    SNAPSHOT = auto()


@dataclass(frozen=True, slots=True)
class EngineCoreRequest:
    """A request that has been checked."""

    key: int
    request_id: str
    prompt: Prompt
    params: SamplingParams
    priority: int = 0

    def portable(self) -> EngineCoreRequest:
        """For another process. A compiled grammar cannot be pickled: what it was compiled from is."""
        assert isinstance(self.prompt, ProcessedInputs)
        extra = dict(self.params.extra_args or {})
        if extra.pop(KEY, None) is None:
            return self
        params, prompt = copy.copy(self.params), self.prompt
        params.extra_args = extra or None
        plain = {"prompt": prompt.text, "prompt_token_ids": prompt.token_ids, "cache_salt": prompt.cache_salt}
        return replace(self, prompt={name: value for name, value in plain.items() if value is not None}, params=params)


class EngineCoreOutput(NamedTuple):
    """What one sequence gained in a step. Of beams the winners come at the end; before it, a piece without tokens says
    that they have grown."""

    key: Key
    seq_index: int
    new_token_ids: list[int]
    new_logprobs: list[LogprobsRow] | None = None  # one a token, where they are asked for or needed to rank sequences
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    cumulative_logprob: float | None = None  # of a beam
    pooling_output: list[float] | None = None


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """What a server must know of its engines before it lets another request in, all in requests; `rows` is how many
    can run at a time. Each step sends it: it is four numbers."""

    rows: int
    running: int
    waiting: int
    swapped: int

    @classmethod
    def of(cls, scheduler: Scheduler) -> SchedulerStats:
        return cls(scheduler.max_num_seqs, len(scheduler.running), len(scheduler.waiting), len(scheduler.swapped))


@dataclass(slots=True)
class EngineCoreOutputs:
    """What came of a step. `new_tokens`: of requests of one sequence that gained one token and nothing else, which are
    most of them in most steps. `failures`: the errors that ended requests. The next two come once a request.
    `prefill_stats`: how many tokens of its prompt were cached, and when its first step began, in seconds of
    time.time(). `prompt_logprobs`: of each token of the prompt but the first."""

    outputs: list[EngineCoreOutput] = field(default_factory=list)
    new_tokens: dict[Key, int] = field(default_factory=dict)
    failures: dict[Key, Exception] = field(default_factory=dict)
    prefill_stats: dict[Key, tuple[int, float]] = field(default_factory=dict)
    prompt_logprobs: dict[Key, list[LogprobsRow]] = field(default_factory=dict)
    scheduler_stats: SchedulerStats | None = None

    def by_sequence(self) -> list[EngineCoreOutput]:
        """All that sequences gained, in one form."""
        return [EngineCoreOutput(key, 0, [token_id]) for key, token_id in self.new_tokens.items()] + self.outputs


@dataclass(frozen=True, slots=True)
class ReadyResponse:
    """What a client elsewhere must know of an engine to check requests for it (vLLM: EngineCoreReadyResponse)."""

    config: EngineConfig
    vocab_size: int
    device: str
    dtype: str
    pid: int

    @classmethod
    def of(cls, engine: Any) -> ReadyResponse:
        """In the process of an LLMEngine."""
        dtype = str(engine.dtype).removeprefix("torch.")
        return cls(engine.config, engine.runner.vocab_size, str(engine.device), dtype, os.getpid())
