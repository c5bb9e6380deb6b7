"""A server without HTTP: an AsyncLLM in this process, asked as a program asks it that embeds the engine.

vLLM: none
"""

from __future__ import annotations

import time
from typing import Any

from folovllm.bench.breakdown import Breakdown
from folovllm.bench.load_request import CacheCounters, LoadRequest
from folovllm.bench.metrics import RequestTimes
from folovllm.bench.workload import BenchModel
from folovllm.engine.async_llm import AsyncLLM
from folovllm.sampling_params import SamplingParams

POLL_SECONDS = 0.02


class InProcessServer:
    """`options`: the engine's settings, by their names. `breakdown`: told of each request's way through the engine;
    prompts are then texts where the model has a tokenizer, since splitting them is a part of that way.

    Raises ValueError: as AsyncLLM.
    """

    poll_seconds = POLL_SECONDS

    def __init__(
        self, model: BenchModel, options: dict[str, Any], *, has_tokenizer: bool, breakdown: Breakdown | None = None
    ) -> None:
        self.llm = AsyncLLM(model.path, load_format=model.load_format, skip_tokenizer_init=not has_tokenizer, **options)
        self._label, self.breakdown = model.label, breakdown
        self._names = 0
        self._usage = 0.0  # the most since it was last asked for

    @property
    def label(self) -> str:
        return f"{self._label}, in this process"

    async def start(self) -> None:
        if self.breakdown is not None:
            self.breakdown.attach(self.llm.engine)

    async def stop(self) -> None:
        await self.llm.shutdown()
        if self.breakdown is not None:
            self.breakdown.detach()

    def usable(self, ids: list[int]) -> list[int]:
        vocab_size = self.llm.engine.input_processor.vocab_size
        return [each % vocab_size for each in ids]

    def _look_at_usage(self) -> float:
        pool = self.llm.engine.scheduler.kv.pool
        self._usage = max(self._usage, pool.num_used / pool.num_blocks)
        return self._usage

    async def counters(self) -> CacheCounters:
        stats, usage = self.llm.stats(), self._look_at_usage()
        self._usage = 0.0
        return CacheCounters(
            kv_usage=usage,
            prefix_queries=stats.prefix_cache_queries,
            prefix_hits=stats.prefix_cache_hits,
            preemptions=stats.preemptions,
        )

    async def ask(self, request: LoadRequest) -> RequestTimes:
        self._names += 1
        name = f"load-{self._names}"
        has_text = self.llm.engine.tokenizer is not None
        params = SamplingParams(**request.sampling, max_tokens=request.max_tokens, ignore_eos=True, detokenize=has_text)
        prompt = request.prompt
        if has_text and self.breakdown is not None and not isinstance(prompt, str):
            prompt = self.as_text(prompt)
        times, began = RequestTimes(), time.perf_counter()
        try:
            async for output in self.llm.generate(prompt, params, name):
                now, num_tokens = time.perf_counter(), len(output.outputs[0].token_ids)
                if not times.arrivals:  # a load may be over before anybody asks for the counters
                    self._look_at_usage()
                if num_tokens > times.num_tokens:
                    times.arrivals.append(now - began)
                    times.num_tokens = num_tokens
        except (ValueError, RuntimeError) as error:
            times.problem = f"{type(error).__name__}: {error}"
        times.e2el = time.perf_counter() - began
        if times.problem is None and not times.arrivals:
            times.problem = "the answer had no tokens"
        if self.breakdown is not None and times.problem is None:
            self.breakdown.answered(name, began, times)
        return times

    def as_text(self, ids: list[int]) -> str:
        """A text of at most as many tokens: what ids spell may split in other places than they did."""
        tokenizer = self.llm.engine.get_tokenizer()
        while True:
            text: str = tokenizer.decode(ids)
            surplus = len(tokenizer(text)["input_ids"]) - len(ids)
            if surplus <= 0 or len(ids) <= surplus:
                return text
            ids = ids[:-surplus]
