"""The engine: requests go in, one step at a time brings tokens, outputs come out.

    add_request ─▶ InputProcessor ─▶ waiting ─▶ step(): ModelRunner ─▶ check_stop ─▶ OutputProcessor ─▶ RequestOutput

Here sequences run one after the other, in the order of their arrival: request by request, and within a request of
n > 1 sequence by sequence. A step is one forward pass and one token.

vLLM: v1/engine/llm_engine.py
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from itertools import count
from pathlib import Path
from typing import Any

from folovllm.attention.backends.dense import DenseBackend
from folovllm.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from folovllm.engine.input_processor import InputProcessor, Prompt
from folovllm.engine.one_thread import threads_for_steps
from folovllm.engine.output_processor import OutputProcessor
from folovllm.model_loader import load_tokenizer, resolve_device, resolve_dtype, resolve_max_model_len
from folovllm.model_loader.hf_config import load_generation_config, load_hf_config
from folovllm.models.weights import build_model, weights_folder
from folovllm.outputs import OutputDelta, RequestOutput, check_can_stream
from folovllm.request import Request, SequenceStatus, check_stop
from folovllm.sampling_params import SamplingParams
from folovllm.utils.checks import check_str, wrong
from folovllm.utils.common import set_random_seed
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
        config.refuse_unsupported()
        set_random_seed(config.model_config.seed)
        model_config = config.model_config
        hf_config = load_hf_config(model_config)
        self.device = resolve_device(model_config)
        self.dtype = resolve_dtype(model_config, hf_config, self.device)
        self.max_model_len = resolve_max_model_len(hf_config, model_config.max_model_len)
        self.config = dataclasses.replace(config)  # a copy: the caller's stays as it was
        self.config.set_max_model_len(self.max_model_len)
        self.model_config = self.config.model_config
        self._threads = threads_for_steps(self.model_config.model)

        self.tokenizer = None if model_config.skip_tokenizer_init else load_tokenizer(model_config)
        self.eos_token_ids = frozenset(load_generation_config(model_config).eos_token_ids)
        weights: Path | None = None if model_config.load_format == "dummy" else weights_folder(model_config.model)
        model = build_model(hf_config, self.max_model_len, self.dtype, self.device, weights, seed=model_config.seed)
        self.runner = ModelRunner(
            model,
            DenseBackend,
            dtype=self.dtype,
            device=self.device,
            max_model_len=self.max_model_len,
            eos_token_ids=self.eos_token_ids,
        )
        self.input_processor = InputProcessor(self.tokenizer, self.runner.vocab_size, self.config)
        self.output_processor = OutputProcessor(self.tokenizer)
        self.requests: dict[str, Request] = {}  # unfinished, in order of arrival
        self._stream_ids = count()

    def add_request(self, request_id: str, prompt: Prompt, params: SamplingParams | None = None) -> None:
        """Queue a request.

        Raises:
            ValueError: request_id is in use; see also InputProcessor.process. A refused request leaves nothing
                behind.
        """
        check_str("request_id", request_id)
        if request_id in self.requests:
            raise ValueError(f"request_id {request_id!r} belongs to an unfinished request: choose another")
        self._add(self.input_processor.process(request_id, prompt, params))

    def _add(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.output_processor.begin(request)

    def step(self) -> list[RequestOutput]:
        """One token for the oldest unfinished sequence. Returns the output of its request, with everything so far.

        Raises:
            Exception: whatever the request's own logits processor raised. That request is gone; the others go on.
        """
        if not self.requests:
            return []
        request = next(iter(self.requests.values()))
        seq = next(seq for seq in request.sequences.values() if not seq.is_finished())
        if seq.status is SequenceStatus.WAITING:
            seq.transition(SequenceStatus.RUNNING)
        try:
            with self._threads():
                step = self.runner.execute_model(seq)
        except Exception:
            self.abort_request(request.request_id)
            raise
        if self.requests.get(request.request_id) is not request:
            return []  # its own processor has aborted it
        seq.data.add_token_id(step.token_id)
        ended = check_stop(seq, self.eos_token_ids, self.max_model_len)
        output = self.output_processor.process(request, seq, step, ended)
        if output.finished:
            del self.requests[request.request_id]
        return [output]

    def abort_request(self, request_id: str) -> None:
        """Drop a request, wherever it is; it gives no further output. An unknown or finished one is no error."""
        check_str("request_id", request_id)
        request = self.requests.pop(request_id, None)
        if request is not None:
            for seq in request.get_seqs():
                if not seq.is_finished():
                    seq.transition(SequenceStatus.FINISHED_ABORTED)
            self.output_processor.discard(request)

    def has_unfinished_requests(self) -> bool:
        """Whether step() has anything to do."""
        return bool(self.requests)

    def check_idle(self) -> None:
        """Raises RuntimeError while a request is in the engine: the outputs of a step would be another caller's."""
        if self.requests:
            raise RuntimeError(
                f"the engine has unfinished requests: {', '.join(self.requests)}; step it, or read its stream, to the "
                "end, or abort them"
            )

    def generate_stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Generator[RequestOutput, None, None]:
        """Generate for one prompt; yields, per step, only what is new (text, token_ids and logprobs are deltas).

        Closing the iterator before its end aborts the request; aborting the request ends the iterator.

        Raises:
            ValueError: see add_request; also best_of > n, whose winners are known only at the end.
            RuntimeError: another request is in the engine.
        """
        check_can_stream(params)
        self.check_idle()
        # Here and not in the generator, so that a bad request fails at the call, not at the first next().
        request = self.input_processor.process(f"stream-{next(self._stream_ids)}", prompt, params)
        return self._stream(request)

    def _stream(self, request: Request) -> Generator[RequestOutput, None, None]:
        self.check_idle()
        delta = OutputDelta()
        try:
            self._add(request)
            while request.request_id in self.requests:
                for output in self.step():
                    yield delta.since_last(output)
        finally:
            self.abort_request(request.request_id)  # nothing to do once it has finished

    def get_tokenizer(self) -> Any:
        """Raises ValueError under skip_tokenizer_init."""
        if self.tokenizer is None:
            raise ValueError("skip_tokenizer_init leaves no tokenizer")
        return self.tokenizer
