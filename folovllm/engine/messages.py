"""What goes between a client and the engine's loop, in one process or between two. vLLM: v1/engine/__init__.py"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from folovllm.engine.input_processor import Checked, Prompt
from folovllm.engine.snapshots import Load
from folovllm.outputs import RequestOutput
from folovllm.sample.structured.processor import KEY
from folovllm.sampling_params import SamplingParams


class EngineCoreRequestType(Enum):
    """Each with its arguments. A request has a number: its id may be used again while it is still being aborted."""

    ADD = auto()  # the request's number, an EngineCoreRequest
    ABORT = auto()  # the request's number and its id
    READY = auto()  # the seconds after which the client takes the next outputs of streams
    RESET_PREFIX_CACHE = auto()
    SNAPSHOT = auto()


@dataclass(frozen=True, slots=True)
class EngineCoreRequest:
    """A request that has been checked. `final_only`: it has one output, the last."""

    request_id: str
    prompt: Prompt
    params: SamplingParams
    priority: int = 0
    final_only: bool = False

    def portable(self) -> EngineCoreRequest:
        """For another process, where the text is made only if the engine compares it with stop strings. A compiled
        grammar cannot be pickled: what it was compiled from is."""
        assert isinstance(self.prompt, Checked)
        params, prompt = copy.copy(self.params), self.prompt
        params.detokenize &= bool(params.stop)
        extra = dict(params.extra_args or {})
        if extra.pop(KEY, None) is None:
            return replace(self, prompt=replace(prompt, params=params), params=params)
        params.extra_args = extra or None
        plain = {"prompt": prompt.text, "prompt_token_ids": prompt.token_ids, "cache_salt": prompt.cache_salt}
        return replace(self, prompt={name: value for name, value in plain.items() if value is not None}, params=params)

    def params_to_check(self) -> SamplingParams | None:
        """None where they have been checked with the prompt."""
        return None if isinstance(self.prompt, Checked) else self.params


@dataclass(frozen=True, slots=True)
class EngineCoreOutputs:
    """What came of a step. `outputs`: of requests, by number, each an output or what ended the request. `wants_ready`:
    the next outputs of streams wait until the client says READY."""

    load: Load
    outputs: list[tuple[int, RequestOutput | Exception]] = field(default_factory=list)
    wants_ready: bool = False
