"""What a server under load is; and one without HTTP, an AsyncLLM in this process, asked as by a program that embeds it.
http_server.py has the other.

vLLM: none
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

from folovllm.bench.load_requests import LoadRequest
from folovllm.bench.metrics import RequestTimes
from folovllm.bench.report import Row
from folovllm.bench.workload import BenchModel
from folovllm.core.observer import EngineObserver
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.engine.async_llm import AsyncLLM
from folovllm.engine.defaults import config_for_llm
from folovllm.engine.llm_engine import LLMEngine
from folovllm.sampling_params import SamplingParams

POLL_SECONDS = 0.02


@dataclass(frozen=True)
class CacheCounters:
    """What a server tells of its KV cache: the share of blocks in use now, and totals since it started."""

    kv_usage: float
    prefix_queries: float
    prefix_hits: float
    preemptions: float


class Server(Protocol):
    """Between start() and stop() it belongs to one event loop."""

    poll_seconds: float

    @property
    def label(self) -> str: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def usable(self, ids: list[int]) -> list[int]:
        """The prompt in tokens that the server's model has."""

    async def ask(self, request: LoadRequest) -> RequestTimes:
        """Never raises for a request that fails: its times say what was wrong."""

    async def counters(self) -> CacheCounters | None: ...


def cache_row(before: CacheCounters | None, after: CacheCounters | None, peak: float) -> Row:
    """None of everything where the server does not tell, and of hits where nothing was looked up."""
    if before is None or after is None:
        return {"kv_peak_share": None, "prefix_hit_rate": None, "preemptions": None}
    queries, hits = after.prefix_queries - before.prefix_queries, after.prefix_hits - before.prefix_hits
    return {
        "kv_peak_share": peak,
        "prefix_hit_rate": hits / queries if queries else None,
        "preemptions": int(after.preemptions - before.preemptions),
    }


class InProcessServer(EngineObserver):
    """`options`: the engine's settings, by their names. Raises ValueError: as AsyncLLM."""

    poll_seconds = POLL_SECONDS
    engine_class: type[LLMEngine] = LLMEngine

    def __init__(self, model: BenchModel, options: dict[str, Any], *, has_tokenizer: bool) -> None:
        options = {"load_format": model.load_format, "skip_tokenizer_init": not has_tokenizer, **options}
        engine = self.engine_class(config_for_llm(model.path, **options))
        engine.observers.append(self)
        for observe in model.observers:
            observe(engine)
        self.llm = AsyncLLM.from_engine(engine)
        self.label = f"{model.label}, in this process"
        self._names = 0
        self._usage = 0.0  # the most since it was last asked for

    async def start(self) -> None:
        """It runs from its making on."""

    async def stop(self) -> None:
        await self.llm.shutdown()

    def usable(self, ids: list[int]) -> list[int]:
        vocab_size = self.llm.engine.input_processor.vocab_size
        return [each % vocab_size for each in ids]

    def scheduled(self, output: SchedulerOutput) -> None:  # of each step: outputs may be handed out together
        pool = self.llm.engine.scheduler.kv.pool
        self._usage = max(self._usage, pool.num_used / pool.num_blocks)

    async def counters(self) -> CacheCounters:
        stats, usage, self._usage = self.llm.stats(), self._usage, 0.0
        return CacheCounters(usage, stats.prefix_cache_queries, stats.prefix_cache_hits, stats.preemptions)

    async def ask(self, request: LoadRequest) -> RequestTimes:
        self._names += 1
        has_text = self.llm.engine.tokenizer is not None
        params = SamplingParams(**request.sampling, max_tokens=request.max_tokens, ignore_eos=True, detokenize=has_text)
        times, began = RequestTimes(), time.perf_counter()
        try:
            async for output in self.llm.generate(request.prompt, params, f"load-{self._names}"):
                now, num_tokens = time.perf_counter(), len(output.outputs[0].token_ids)
                if num_tokens > times.num_tokens:
                    times.arrivals.append(now - began)
                    times.num_tokens = num_tokens
        except (ValueError, RuntimeError) as error:
            times.problem = f"{type(error).__name__}: {error}"
        times.end(began)
        return times
