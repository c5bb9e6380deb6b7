"""The engine: requests go in, one step at a time brings tokens, outputs come out.

    add_request ─▶ InputProcessor ─▶ Scheduler.schedule() ─▶ ModelRunner.launch(), collect() ─▶ Scheduler.update()
                                           ▲                                                       │
                                           └───────────── the next step ◀────── OutputProcessor ─▶ RequestOutput

A step is one forward for all sequences that take part, and one token for each of them. Requests join and leave between
steps.

vLLM: v1/engine/llm_engine.py, v1/engine/core.py
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Generator, Set
from typing import Any, cast

from folovllm.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from folovllm.core.prefix_caching import PrefixCachingManager
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.engine.beams import BeamGroup
from folovllm.engine.core import EngineCore
from folovllm.engine.input_processor import InputProcessor, Prompt
from folovllm.engine.outbox import Outbox
from folovllm.engine.output_processor import OutputProcessor
from folovllm.engine.stats import EngineStats, TokenCounter
from folovllm.engine.stepper import StepFailedError
from folovllm.engine.stream import OutputDelta
from folovllm.model_loader import (
    load_generation_config,
    load_hf_config,
    load_tokenizer,
    resolve_device,
    resolve_dtype,
    resolve_max_model_len,
)
from folovllm.outputs import RequestOutput
from folovllm.request import Request, Sequence, SequenceStatus
from folovllm.reserved import refuse_reserved_fields
from folovllm.sampling_params import SamplingParams
from folovllm.utils.checks import check_int, wrong
from folovllm.utils.ids import Counter
from folovllm.utils.seed import set_seed
from folovllm.worker.model_runner_output import LogprobsRow, ModelRunnerOutput


class LLMEngine:
    """LLMEngine(engine_config) or LLMEngine(model_config, cache_config, scheduler_config)."""

    def __init__(
        self,
        config: EngineConfig | ModelConfig,
        cache_config: CacheConfig | None = None,
        scheduler_config: SchedulerConfig | None = None,
    ) -> None:
        if isinstance(config, ModelConfig):
            config = EngineConfig(config, cache_config or CacheConfig(), scheduler_config or SchedulerConfig())
        elif not isinstance(config, EngineConfig):
            raise wrong("config", "be an EngineConfig or a ModelConfig", config)
        elif cache_config is not None or scheduler_config is not None:
            raise ValueError("cache_config and scheduler_config must not be given: an EngineConfig has both")
        refuse_reserved_fields(config)
        set_seed(config.model_config.seed)
        model_config = config.model_config
        hf_config = load_hf_config(model_config)
        self.device = resolve_device(model_config)
        self.dtype = resolve_dtype(model_config, hf_config, self.device)
        self.max_model_len = resolve_max_model_len(hf_config, model_config.max_model_len)
        self.config = dataclasses.replace(config)  # a copy: the caller's stays as it was
        self.config.set_max_model_len(self.max_model_len)
        self.model_config = self.config.model_config
        self.tokenizer = None if model_config.skip_tokenizer_init else load_tokenizer(model_config)
        self.eos_token_ids = frozenset(load_generation_config(model_config).eos_token_ids)

        core = EngineCore(self.config, hf_config, self.dtype, self.device, self.eos_token_ids)
        self.scheduler, self.runner, self.cache_size = core.scheduler, core.runner, core.cache_size
        self.stepper = core.stepper
        self.max_model_len, self.config.scheduler_config = core.max_model_len, core.limits
        self.input_processor = InputProcessor(self.tokenizer, self.runner.vocab_size, core.room)
        self.output_processor = OutputProcessor(self.tokenizer)
        self._beams: dict[str, BeamGroup] = {}
        self._requests: dict[str, Request] = {}  # unfinished, in order of arrival
        self._outbox = Outbox()
        self._stream_ids = Counter()
        self._tokens = TokenCounter()

    def add_request(
        self, request_id: str, prompt: Prompt, params: SamplingParams | None = None, *, priority: int = 0
    ) -> None:
        """Queue a request. Under policy="priority" a lower number goes first; among equals, who came first.

        Raises:
            ValueError: request_id is in use, priority without that policy; or see InputProcessor.process. A refused
                request leaves nothing behind.
        """
        if self._holds(request_id):
            raise ValueError(f"request_id {request_id!r} belongs to an unfinished request: choose another")
        check_int("priority", priority)
        if priority != 0 and self.config.scheduler_config.policy != "priority":
            raise ValueError(f"priority must be 0 under policy 'fcfs', got {priority}; set policy='priority' to use it")
        request = self.input_processor.process(request_id, prompt, params)
        request.priority = priority
        self._requests[request_id] = request
        if request.sampling_params.use_beam_search:
            self._beams[request_id] = BeamGroup(request, self.scheduler, self.eos_token_ids, self.max_model_len)
        self.output_processor.begin(request)
        self.scheduler.add_request(request)

    def step(self) -> list[RequestOutput]:
        """Run one step; returns the outputs that changed, each with everything its request has so far.

        Outputs of open streams are kept for them.

        Raises:
            Exception: whatever a request's own logits processor raised. That request is gone; the others go on.
        """
        self.advance()
        return self._outbox.take_unclaimed()

    def step_for(self, request_ids: Set[str]) -> list[RequestOutput]:
        """Outputs of these requests only, stepping the engine once if none is at hand; other requests' are kept.

        So several users of one engine (open streams, a generate() among them) each get what is theirs, errors too.
        """
        if not self._outbox.holds(request_ids):
            self.advance()
        return self._outbox.take(request_ids)

    def drain(self) -> tuple[list[RequestOutput], dict[str, Exception]]:
        """Everything that waits to be fetched, of all requests: outputs in order, and failures by request id."""
        return self._outbox.drain()

    def abort_request(self, request_id: str) -> None:
        """Drop a request, wherever it is; it gives no further output. An unknown or finished one is no error."""
        request = self._requests.pop(request_id, None)
        self._outbox.drop(request_id)
        if request is not None:
            self.scheduler.abort(request)
            self.output_processor.discard(request)
            self._beams.pop(request_id, None)

    def has_unfinished_requests(self) -> bool:
        """Whether step() has anything to do or to hand out."""
        return bool(self._requests) or self._outbox.holds_unclaimed()

    def _holds(self, request_id: str) -> bool:
        """Whether the request runs, or has outputs that nobody has fetched."""
        return request_id in self._requests or self._outbox.holds({request_id})

    def generate_stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Generator[RequestOutput, None, None]:
        """Generate for one prompt; yields, per step, only what is new (text, token_ids and logprobs are deltas).

        Other requests may be in the engine and other streams may be open: whoever steps, each gets its own outputs.
        Closing the iterator before its end aborts the request; aborting the request ends the iterator.

        Raises:
            ValueError: see add_request; also best_of > n and beam search, whose winners are known only at the end.
        """
        if isinstance(params, SamplingParams) and params.use_beam_search:
            raise ValueError("use_beam_search must be False when streaming: which beam wins is known only at the end")
        if isinstance(params, SamplingParams) and params.best_of != params.n:
            raise ValueError(f"best_of ({params.best_of}) must equal n ({params.n}) when streaming")
        request_id = f"stream-{next(self._stream_ids)}"
        # Here and not in the generator, so that a bad request fails at the call, not at the first next().
        self.add_request(request_id, prompt, params)
        stream = self._stream(request_id)
        next(stream)  # into its try block: closing a generator that never began runs nothing of it
        return cast("Generator[RequestOutput, None, None]", stream)

    def _stream(self, request_id: str) -> Generator[RequestOutput | None, None, None]:
        """None first, then the deltas."""
        delta = OutputDelta()
        self._outbox.claim(request_id)
        try:
            yield None
            while self._holds(request_id):
                for output in self.step_for({request_id}):
                    yield delta.since_last(output)
        finally:
            self._outbox.release(request_id)
            self.abort_request(request_id)  # nothing to do once it has finished

    def advance(self) -> None:
        """One step, if there is anything to do; what comes of it stays here to be fetched."""
        if not self._requests:
            return
        began = time.perf_counter()
        try:
            scheduled, result = self.stepper.step()
        except StepFailedError as failed:  # those that took part are lost, those that wait are not
            self._fail({seq.request_id for seq in failed.seqs}, failed.error)
            return
        num_output_tokens = self._take_in(scheduled, result)
        self._tokens.record(began, scheduled.num_prompt_tokens, num_output_tokens)

    def _take_in(self, scheduled: SchedulerOutput, result: ModelRunnerOutput) -> int:
        """Append a step's tokens and put the outputs of the requests that changed into the outbox."""
        rows = scheduled.rows
        for seq in rows:
            if seq.seq_id in result.failures and not seq.is_finished():
                self._fail({seq.request_id}, result.failures[seq.seq_id])
        logprobs = dict(zip(rows, result.logprobs, strict=True))
        changed: dict[str, Request] = {}
        gained = self.scheduler.update(scheduled, result.token_ids)
        for seq in rows:
            if (prompt_logprobs := result.prompt_logprobs.get(seq.seq_id)) is not None and not seq.is_finished():
                self.output_processor.add_prompt_logprobs(self._requests[seq.request_id], prompt_logprobs)
        for seq, ended in gained:
            request = changed[seq.request_id] = self._requests[seq.request_id]
            ended = self.output_processor.add_token(request, seq, logprobs[seq], ended)
            if ended is not None:
                self.scheduler.finish(request, seq, ended)
        num_beam_tokens = self._advance_beams(logprobs, changed) if self._beams else 0
        for request in changed.values():
            output = self.output_processor.make_output(request)
            if output.finished:
                del self._requests[request.request_id]
            self._outbox.put(output)
        return len(gained) + num_beam_tokens

    def _advance_beams(self, logprobs: dict[Sequence, LogprobsRow | None], changed: dict[str, Request]) -> int:
        """One step of every beam search whose beams took part; its output comes at the end, not on the way."""
        rows = {
            seq: row
            for seq, row in logprobs.items()
            if row is not None and seq.status is SequenceStatus.RUNNING and seq.request_id in self._beams
        }
        for request_id in {seq.request_id for seq in rows}:
            request, group = self._requests[request_id], self._beams[request_id]
            if request.metrics.first_token_time is None:
                request.metrics.first_token_time = time.time()
            if group.advance(rows):
                del self._beams[request_id]
                self.output_processor.adopt(request, group.winners())
                changed[request_id] = request
        return len(rows)

    def _fail(self, request_ids: set[str], error: Exception) -> None:
        """These requests end in `error`, which whoever asked for them gets raised."""
        for request_id in request_ids & self._requests.keys():
            self.abort_request(request_id)
            self._outbox.fail(request_id, error)

    def stats(self) -> EngineStats:
        scheduler, pool = self.scheduler, self.scheduler.kv.pool
        cache = self._prefix_cache
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            swapped=len(scheduler.swapped),
            running_seqs=scheduler.num_running_seqs,
            kv_blocks_total=pool.num_blocks,
            kv_blocks_used=pool.num_used,
            kv_blocks_shared=pool.num_shared,
            kv_blocks_cached=cache.pool.num_cached if cache else 0,
            kv_tokens_reserved=pool.num_used * scheduler.kv.block_size,
            kv_tokens_used=scheduler.num_used_tokens,
            preemptions=scheduler.preempter.num_recomputed + scheduler.preempter.num_swapped,
            prefix_cache_queries=cache.num_queries if cache else 0,
            prefix_cache_hits=cache.num_hits if cache else 0,
            steps=self._tokens.steps,
            prompt_tokens=self._tokens.prompt_tokens,
            output_tokens=self._tokens.output_tokens,
            tokens_per_s=self._tokens.tokens_per_s if self._requests else 0.0,
        )

    @property
    def _prefix_cache(self) -> PrefixCachingManager | None:
        kv = self.scheduler.kv
        return kv if isinstance(kv, PrefixCachingManager) else None

    def reset_prefix_cache(self) -> None:
        """Nothing that has been computed so far is found by requests that come from now on: after a change of weights,
        or before a measurement. Requests that run keep what they have. Without prefix caching there is nothing to do.
        """
        if self._prefix_cache is not None:
            self._prefix_cache.reset()

    def get_tokenizer(self) -> Any:
        """Raises ValueError under skip_tokenizer_init."""
        if self.tokenizer is None:
            raise ValueError("skip_tokenizer_init leaves no tokenizer")
        return self.tokenizer
