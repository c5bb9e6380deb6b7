"""The engine: requests go in, one step at a time brings tokens, outputs come out.

    add_request ─▶ InputProcessor ─▶ EngineCore.step() ─▶ OutputProcessor ─▶ RequestOutput
                                       ▲   token ids        │
                                       └─ stop strings ─────┘

Requests join and leave between steps. Threads may share an engine: each call has it to itself, and the requests of all
are computed together.

vLLM: v1/engine/llm_engine.py
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Set
from itertools import count
from typing import Any, cast

from folovllm.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from folovllm.engine.builder.components import Components, choose_components
from folovllm.engine.builder.engine_core import build_engine_core
from folovllm.engine.input_processor import InputProcessor, Prompt, ends_of_text
from folovllm.engine.output_processor import OutputProcessor, RequestState
from folovllm.engine.ranks import start_ranks
from folovllm.engine.stats import EngineStats
from folovllm.model_loader import load_tokenizer, resolve_device, resolve_dtype, resolve_max_model_len
from folovllm.model_loader.hf_config import load_hf_config
from folovllm.model_loader.model_files import readable_errors
from folovllm.model_loader.pooler_config import load_pooler_config
from folovllm.outputs import OutputDelta, RequestOutput, check_can_stream
from folovllm.pooling_params import PoolingParams
from folovllm.sample.loaded_processors import load_logits_processors
from folovllm.sampling_params import RequestOutputKind, SamplingParams
from folovllm.utils.checks import check_str, wrong
from folovllm.utils.common import set_random_seed
from folovllm.utils.engine_lock import EngineLock
from folovllm.utils.ids import next_unused
from folovllm.vllm_names import KnowsVLLM


class LLMEngine(KnowsVLLM):
    """LLMEngine(engine_config) or LLMEngine(model_config, cache_config, scheduler_config).

    choose: called in place of choose_components(), to change what that returns.
    """

    def __init__(
        self,
        config: EngineConfig | ModelConfig,
        cache_config: CacheConfig | None = None,
        scheduler_config: SchedulerConfig | None = None,
        *,
        choose: Callable[..., Components] = choose_components,
    ) -> None:
        if isinstance(config, ModelConfig):
            config = EngineConfig(config, cache_config or CacheConfig(), scheduler_config or SchedulerConfig())
        elif not isinstance(config, EngineConfig):
            raise wrong("config", "be an EngineConfig or a ModelConfig", config)
        elif cache_config is not None or scheduler_config is not None:
            raise ValueError("cache_config and scheduler_config must not be given: an EngineConfig has both")
        load_logits_processors(config.model_config.logits_processors)
        set_random_seed(config.model_config.seed)
        model_config = config.model_config
        hf_config = load_hf_config(model_config)
        self.device = resolve_device(model_config)
        self.dtype = resolve_dtype(model_config, hf_config, self.device)
        config = dataclasses.replace(config)  # a copy: the caller's stays as it was
        config.set_max_model_len(resolve_max_model_len(hf_config, model_config.max_model_len))
        self.tokenizer = None if model_config.skip_tokenizer_init else load_tokenizer(model_config)
        self.eos_token_ids = ends_of_text(model_config, self.tokenizer, warn=hf_config.pooling_task is None)
        with readable_errors(model_config.model):
            config.pooler_config = load_pooler_config(hf_config, model_config.model, self.tokenizer)

        self.core = build_engine_core(
            config, hf_config, self.dtype, self.device, self.eos_token_ids, choose=choose,
            group=start_ranks(config, hf_config, self.dtype, self.device),
        )  # fmt: skip
        self.scheduler, self.runner = self.core.scheduler, self.core.runner
        self.config = self.core.config  # with all that was decided filled in
        self.model_config, self.max_model_len = self.config.model_config, self.scheduler.max_model_len
        self.requests = self.core.requests  # unfinished, in order of arrival
        self.input_processor = InputProcessor(self.tokenizer, self.runner.vocab_size, self.config)
        self.output_processor = OutputProcessor(self.tokenizer)
        # A step brings tokens for all, whoever asked for it. These have an output to be fetched, which is made then:
        self._changed: dict[str, RequestState] = {}
        self._failures: dict[str, Exception] = {}  # what ended requests, to be raised for those who ask for them
        self._stream_ids = count()
        self._streams: set[str] = set()  # the open ones
        self._lock = EngineLock()  # of all of the above

    @classmethod
    def from_engine_args(cls, args: Any) -> LLMEngine:
        return cls(args.create_engine_config())

    def add_request(
        self, request_id: str, prompt: Prompt, params: SamplingParams | PoolingParams | None = None, *,
        priority: int = 0, output_kind: RequestOutputKind | None = None,
    ) -> None:  # fmt: skip
        """Queue a request. Under policy="priority" a lower number goes first; among equals, the one that came first.
        output_kind: in place of the parameters' own; of FINAL_ONLY no output is made before the last.

        Raises:
            ValueError: request_id is in use, priority without that policy; see also InputProcessor.process. A
                refused request leaves nothing behind.
        """
        check_str("request_id", request_id)
        with self._lock:
            if self.holds({request_id}):
                raise ValueError(f"request_id {request_id!r} belongs to an unfinished request: choose another")
            request = self.input_processor.process(request_id, prompt, params, priority)
            known = request_id, request_id, request.prompt, request.prompt_token_ids, request.sampling_params
            final_only = (output_kind or request.sampling_params.output_kind) is RequestOutputKind.FINAL_ONLY
            self.output_processor.add_request(*known, final_only=final_only)
            self.core.add_request(request)

    def step(self) -> list[RequestOutput]:
        """Run one step; returns the outputs that changed, each with everything its request has so far.

        Outputs of open streams are kept for them.

        Raises:
            Exception: whatever a request's own logits processor raised. That request is gone; the others go on.
        """
        taken: dict[str, RequestState] = {}
        try:
            with self._lock:
                self._step()
                taken = {name: state for name, state in self._changed.items() if name not in self._streams}
                return self._take((taken.keys() | self._failures.keys()) - self._streams)
        except BaseException:  # an interrupt when the lock is released: what was taken is given out next time
            self._changed = taken | self._changed
            raise

    def step_for(self, request_ids: Set[str]) -> list[RequestOutput]:
        """Outputs of these requests only, stepping the engine once if none is at hand; other requests' are kept.

        So several users of one engine (open streams, a generate() among them) each get what is theirs, errors too.

        Raises:
            RuntimeError: none of the requests is in the engine any more: they have been aborted.
        """
        with self._lock:
            if not self._has_output(request_ids):
                if self.requests.keys().isdisjoint(request_ids):
                    raise RuntimeError(f"requests {sorted(request_ids)} are not in the engine: they have been aborted")
                self._step()
            return self._take(request_ids)

    def _step(self) -> None:
        """One step; what comes of it stays here to be fetched."""
        message = self.core.step()
        changed, stopped = self.output_processor.process_outputs(message)
        for state, index in stopped:
            self.core.abort_request(state.request_id, index)
        self._changed |= {state.request_id: state for state in changed}
        for request_id, error in message.failures.items():
            self.abort_request(str(request_id))
            self._failures[str(request_id)] = error

    def _has_output(self, request_ids: Set[str]) -> bool:
        return not self._changed.keys().isdisjoint(request_ids) or not self._failures.keys().isdisjoint(request_ids)

    def _take(self, request_ids: Set[str]) -> list[RequestOutput]:
        """The outputs of these requests; raises a failure of one of them first, each once."""
        for request_id in self._failures.keys() & request_ids:
            raise self._failures.pop(request_id)
        taken = [request_id for request_id in self._changed if request_id in request_ids]
        return [self._changed.pop(request_id).output() for request_id in taken]

    def abort_request(self, request_id: str) -> None:
        """Drop a request, wherever it is; it gives no further output. An unknown or finished one is no error."""
        check_str("request_id", request_id)
        with self._lock:
            self._changed.pop(request_id, None)
            self._failures.pop(request_id, None)
            self.output_processor.abort_request(request_id)
            self.core.abort_request(request_id)

    def has_unfinished_requests(self) -> bool:
        """Whether step() has anything to do or to hand out."""
        return bool(self.requests) or not self._streams.issuperset([*self._changed, *self._failures])

    def holds(self, request_ids: Set[str]) -> bool:
        """Whether one of these requests runs, or has outputs that have not been fetched."""
        return not self.requests.keys().isdisjoint(request_ids) or self._has_output(request_ids)

    def generate_stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Generator[RequestOutput, None, None]:
        """Generate for one prompt; yields, per step, only what is new (text, token_ids and logprobs are deltas).

        Other requests and streams may be in the engine: each gets its own outputs, whichever of them steps it.
        Closing the iterator before its end aborts the request; aborting the request ends the iterator.

        Raises:
            ValueError: see add_request; also best_of > n and beam search, whose winners are known only at the end.
        """
        check_can_stream(params)
        with self._lock:
            request_id = next_unused("stream", self._stream_ids, lambda name: self.holds({name}))
            # Here and not in the generator, so that a bad request fails at the call, not at the first next().
            self.add_request(request_id, prompt, params)
            self._streams.add(request_id)
            stream = self._stream(request_id)
            next(stream)  # into its try block: closing a generator that never began runs nothing of it
        return cast("Generator[RequestOutput, None, None]", stream)

    def _stream(self, request_id: str) -> Generator[RequestOutput | None, None, None]:
        """None first, then the deltas."""
        delta = OutputDelta()
        try:
            yield None
            while (outputs := self._next_of(request_id)) is not None:
                for output in outputs:
                    yield delta.since_last(output)
        finally:
            with self._lock:
                self._streams.discard(request_id)
                self.abort_request(request_id)  # nothing to do once it has finished

    def _next_of(self, request_id: str) -> list[RequestOutput] | None:
        with self._lock:
            return self.step_for({request_id}) if self.holds({request_id}) else None

    def stats(self) -> EngineStats:
        return self.core.stats()

    def reset_prefix_cache(self) -> bool:
        """Nothing that has been computed so far is found by requests that come from now on: after a change of weights,
        or before a measurement. Requests that run keep what they have. Without prefix caching there is nothing to do.
        True: it always can.
        """
        with self._lock:
            self.scheduler.kv.reset_prefix_cache()
        return True

    def get_tokenizer(self) -> Any:
        """Raises ValueError under skip_tokenizer_init."""
        if self.tokenizer is None:
            raise ValueError("skip_tokenizer_init leaves no tokenizer")
        return self.tokenizer
