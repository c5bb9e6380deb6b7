"""The engine: requests go in, one step at a time brings tokens, outputs come out.

    add_request ─▶ InputProcessor ─▶ waiting ─▶ step(): ModelRunner ─▶ check_stop ─▶ OutputProcessor ─▶ RequestOutput

Here sequences run one after the other, in the order of their arrival: request by request, and within a request of
n > 1 sequence by sequence. A step is one forward pass and one token. Threads may share an engine: each call has it to
itself.

vLLM: v1/engine/llm_engine.py
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Set
from pathlib import Path
from typing import Any, cast

from folovllm.attention.backend import select_backend
from folovllm.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from folovllm.core.stop import check_stop
from folovllm.engine.input_processor import InputProcessor, Prompt, Room
from folovllm.engine.outbox import Outbox
from folovllm.engine.output_processor import OutputProcessor
from folovllm.engine.stream import OutputDelta, check_can_stream
from folovllm.engine.threads import few_threads
from folovllm.hf_config import load_generation_config, load_hf_config
from folovllm.model_loader import load_tokenizer, resolve_device, resolve_dtype, resolve_max_model_len
from folovllm.models.weights import build_model, weights_folder
from folovllm.outputs import RequestOutput
from folovllm.request import Request, Sequence, SequenceStatus
from folovllm.reserved import refuse_reserved_fields
from folovllm.sampling_params import SamplingParams
from folovllm.utils.checks import check_str, wrong
from folovllm.utils.common import set_random_seed
from folovllm.utils.ids import Counter, next_unused
from folovllm.utils.turns import Turns
from folovllm.worker.model_runner import ModelRunner


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
        set_random_seed(config.model_config.seed)
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
        backend = select_backend(model_config.attention_backend, self.device)
        weights: Path | None = None if model_config.load_format == "dummy" else weights_folder(model_config.model)
        model = build_model(hf_config, self.max_model_len, self.dtype, self.device, weights, seed=model_config.seed)
        self.runner = ModelRunner(
            model,
            backend,
            dtype=self.dtype,
            device=self.device,
            max_model_len=self.max_model_len,
            eos_token_ids=self.eos_token_ids,
        )
        room = Room(self.max_model_len)
        self.input_processor = InputProcessor(self.tokenizer, self.runner.vocab_size, room, self.config)
        self.output_processor = OutputProcessor(self.tokenizer)
        self._requests: dict[str, Request] = {}  # unfinished, in order of arrival
        self._outbox = Outbox()
        self._stream_ids = Counter()
        self._turns = Turns()  # whoever changes anything of the above takes one
        self._is_stepping = False

    def add_request(self, request_id: str, prompt: Prompt, params: SamplingParams | None = None) -> None:
        """Queue a request.

        Raises:
            ValueError: request_id is in use; see also InputProcessor.process. A refused request leaves nothing
                behind.
        """
        check_str("request_id", request_id)
        with self._turns.take():
            if self.holds({request_id}):
                raise ValueError(f"request_id {request_id!r} belongs to an unfinished request: choose another")
            request = self.input_processor.process(request_id, prompt, params)
            self._requests[request_id] = request
            self.output_processor.begin(request)

    def step(self) -> list[RequestOutput]:
        """Run one step; returns the outputs that changed, each with everything its request has so far.

        Outputs of open streams are kept for them.

        Raises:
            Exception: whatever a request's own logits processor raised. That request is gone; the others go on.
        """
        taken: list[RequestOutput] = []
        try:
            with self._turns.take():
                self._advance()
                taken += self._outbox.take_unclaimed()
            return taken
        except BaseException:  # an interrupt at the end of the turn: what was taken is given out next time
            self._outbox.put_back(taken)
            raise

    def step_for(self, request_ids: Set[str]) -> list[RequestOutput]:
        """Outputs of these requests only, stepping the engine once if none is at hand; other requests' are kept.

        So several users of one engine (open streams, a generate() among them) each get what is theirs, errors too.

        Raises:
            RuntimeError: none of the requests is in the engine any more: they have been aborted.
        """
        with self._turns.take():
            if not self._outbox.holds(request_ids):
                if request_ids.isdisjoint(self._requests):
                    raise RuntimeError(f"requests {sorted(request_ids)} are not in the engine: they have been aborted")
                self._advance()
            return self._outbox.take(request_ids)

    def abort_request(self, request_id: str) -> None:
        """Drop a request, wherever it is; it gives no further output. An unknown or finished one is no error."""
        check_str("request_id", request_id)
        with self._turns.take():
            request = self._requests.pop(request_id, None)
            self._outbox.drop(request_id)
            if request is None:
                return
            for seq in request.get_seqs():
                if not seq.is_finished():
                    seq.transition(SequenceStatus.FINISHED_ABORTED)
            self.output_processor.discard(request)

    def has_unfinished_requests(self) -> bool:
        """Whether step() has anything to do or to hand out."""
        return bool(self._requests) or self._outbox.holds_unclaimed()

    def holds(self, request_ids: Set[str]) -> bool:
        """Whether one of these requests runs, or has outputs that have not been fetched."""
        return not request_ids.isdisjoint(self._requests) or self._outbox.holds(request_ids)

    def generate_stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Generator[RequestOutput, None, None]:
        """Generate for one prompt; yields, per step, only what is new (text, token_ids and logprobs are deltas).

        Other requests may be in the engine and other streams may be open: each gets its own outputs, whichever of them
        steps the engine.
        Closing the iterator before its end aborts the request; aborting the request ends the iterator.

        Raises:
            ValueError: see add_request; also best_of > n, whose winners are known only at the end.
        """
        check_can_stream(params)
        with self._turns.take():
            request_id = next_unused("stream", self._stream_ids, lambda name: self.holds({name}))
            # Here and not in the generator, so that a bad request fails at the call, not at the first next().
            self.add_request(request_id, prompt, params)
            self._outbox.claim(request_id)
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
            with self._turns.take():
                self._outbox.release(request_id)
                self.abort_request(request_id)  # nothing to do once it has finished

    def _next_of(self, request_id: str) -> list[RequestOutput] | None:
        with self._turns.take():
            return self.step_for({request_id}) if self.holds({request_id}) else None

    def _advance(self) -> None:
        if not self._requests:
            return
        if self._is_stepping:
            raise RuntimeError(
                "the engine is in the middle of a step, and a logits processor or the like asks it for the next one: "
                "use another engine in there"
            )
        self._is_stepping = True
        try:
            with few_threads(self.model_config.model):
                self._step()
        finally:
            self._is_stepping = False

    def _step(self) -> None:
        """One token for the oldest unfinished sequence."""
        request, seq = self._next_sequence()
        try:
            step = self.runner.execute_model(seq)
        except Exception as error:
            # A logits processor of the request's own may have failed: it goes, the others go on.
            self.abort_request(request.request_id)
            self._outbox.fail(request.request_id, error)
            return
        if self._requests.get(request.request_id) is not request:
            return  # its own processor has aborted it
        seq.add_token_id(step.token_id)
        ended = check_stop(seq, self.eos_token_ids, self.max_model_len)
        output = self.output_processor.process(request, seq, step, ended)
        self._outbox.put([output])
        if output.finished:
            del self._requests[request.request_id]

    def _next_sequence(self) -> tuple[Request, Sequence]:
        request = next(iter(self._requests.values()))
        seq = next(seq for seq in request.get_seqs() if not seq.is_finished())
        if seq.status is SequenceStatus.WAITING:
            seq.transition(SequenceStatus.RUNNING)
        return request, seq

    def get_tokenizer(self) -> Any:
        """Raises ValueError under skip_tokenizer_init."""
        if self.tokenizer is None:
            raise ValueError("skip_tokenizer_init leaves no tokenizer")
        return self.tokenizer
