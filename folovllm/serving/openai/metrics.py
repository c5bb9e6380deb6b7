"""What Prometheus reads: the engine's state as it is asked for it, and histograms of what requests went through.

The names are vLLM's, with our prefix.

vLLM: v1/metrics/loggers.py
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from folovllm.engine.looks import EngineLook
from folovllm.engine.stats import EngineStats
from folovllm.entrypoints.engine_client import EngineClient
from folovllm.outputs import RequestOutput
from folovllm.serving.openai.gate import Gate

_LABEL = "model_name"
_STATE: list[tuple[type[GaugeMetricFamily] | type[CounterMetricFamily], str, str, Callable[[EngineStats], float]]] = [
    (GaugeMetricFamily, "num_requests_running", "Requests in the batch.", lambda stats: stats.running),
    (GaugeMetricFamily, "num_requests_waiting", "Requests that wait for room, in the engine or before it.",
     lambda stats: stats.waiting),
    (GaugeMetricFamily, "num_requests_swapped", "Requests whose blocks are in CPU memory.",
     lambda stats: stats.swapped),
    (GaugeMetricFamily, "kv_cache_usage_perc", "Share of the KV cache's blocks in use; 1 is all of them.",
     lambda stats: stats.kv_blocks_used / stats.kv_blocks_total if stats.kv_blocks_total else 0.0),
    (CounterMetricFamily, "prompt_tokens", "Prompt tokens that were computed.", lambda stats: stats.prompt_tokens),
    (CounterMetricFamily, "generation_tokens", "Tokens that were generated.", lambda stats: stats.output_tokens),
    (CounterMetricFamily, "num_preemptions", "Sequences that had to give way.", lambda stats: stats.preemptions),
    (CounterMetricFamily, "prefix_cache_queries", "Prompt tokens that were looked up in the cache.",
     lambda stats: stats.prefix_cache_queries),
    (CounterMetricFamily, "prefix_cache_hits", "Prompt tokens that were found there.",
     lambda stats: stats.prefix_cache_hits),
    (CounterMetricFamily, "engine_steps", "Steps of the engine.", lambda stats: stats.steps),
]  # fmt: skip
_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_ITL = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_E2E = (0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 120.0, 240.0, 480.0)


class _EngineState(Collector):
    """Read when it is asked for: nothing is counted twice, and a server that is not asked does nothing for it.

    Several engines have a label more, `replica`."""

    def __init__(self, model_name: str, gate: Gate) -> None:
        self.model_name, self.gate = model_name, gate
        self.looks: list[EngineLook] = []

    def collect(self) -> Iterator[Metric]:
        names = [_LABEL] if all(look.replica is None for look in self.looks) else [_LABEL, "replica"]
        for family, name, text, value_of in _STATE:
            metric = family(f"folovllm:{name}", text, labels=names)
            for look in self.looks:
                waits_here = name == "num_requests_waiting" and look.replica is None
                value = self.gate.num_waiting() if waits_here else value_of(look.stats)
                metric.add_metric([self.model_name, look.replica or ""][: len(names)], value)
            yield metric


class _Durations(Collector):
    """A histogram of seconds. prometheus_client's own takes one value at a time, and here they come in hundreds."""

    def __init__(self, name: str, text: str, label: str, buckets: tuple[float, ...]) -> None:
        self.name, self.text, self.label, self.buckets = name, text, label, buckets
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        self.counts[bisect_left(self.buckets, seconds)] += times
        self.total += seconds * times

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(f"folovllm:{self.name}", self.text, labels=[_LABEL])
        names = [*map(str, self.buckets), "+Inf"]
        family.add_metric([self.label], list(zip(names, accumulate(self.counts), strict=True)), self.total)
        yield family


class Metrics:
    """A registry of its own for each application: two in a process do not meet."""

    def __init__(self, llm: EngineClient, model_name: str, gate: Gate) -> None:
        self.registry = CollectorRegistry()
        self.llm, self._state = llm, _EngineState(model_name, gate)
        self.registry.register(self._state)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> _Durations:
            made = _Durations(name, text, model_name, buckets)
            self.registry.register(made)
            return made

        self.ttft = histogram("time_to_first_token_seconds", "From arrival to the first token.", _TTFT)
        self.itl = histogram("inter_token_latency_seconds", "Between two tokens of one request.", _ITL)
        self.e2e = histogram("e2e_request_latency_seconds", "From arrival to the last token.", _E2E)
        self._success = Counter(
            "folovllm:request_success", "Finished sequences.", [_LABEL, "finished_reason"], registry=self.registry
        )
        failures = Counter("folovllm:request_failure", "Requests that a step failed.", [_LABEL], registry=self.registry)
        self.failures = failures.labels(model_name)
        self._model_name = model_name

    def observe(self, num_prompts: int) -> _Observed:
        return _Observed(self, num_prompts)

    def success(self, reason: str) -> None:
        self._success.labels(self._model_name, reason).inc()

    async def text(self) -> bytes:
        self._state.looks = await self.llm.looks()
        return generate_latest(self.registry)


class _Observed:
    """One request's outputs as they pass by."""

    def __init__(self, metrics: Metrics, num_prompts: int) -> None:
        self.metrics = metrics
        self.arrived = time.perf_counter()
        self.last = [0.0] * num_prompts
        self.tokens = [0] * num_prompts

    def see(self, place: int, output: RequestOutput) -> None:
        now = time.perf_counter()
        num_tokens = sum(len(completion.token_ids) for completion in output.outputs)
        fresh, itl = num_tokens - self.tokens[place], self.metrics.itl
        if fresh > 0:
            if self.tokens[place] > 0:
                # Several tokens may come at once, to a reader that was busy: each has its share of the time.
                itl.observe((now - self.last[place]) / fresh, fresh)
            elif output.metrics is not None and output.metrics.ttft is not None and output.finished:
                # All at once, to a reader that waits for the end: the engine knows when they were made.
                self.metrics.ttft.observe(output.metrics.ttft)
                itl.observe(output.metrics.tpot or 0.0, fresh - 1)
            else:
                self.metrics.ttft.observe(now - self.arrived)
            self.last[place], self.tokens[place] = now, num_tokens
        if output.finished:
            self.metrics.e2e.observe(now - self.arrived)
            for completion in output.outputs:
                self.metrics.success(completion.finish_reason or "abort")
