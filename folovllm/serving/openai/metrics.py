"""Prometheus metrics: the engine's state as it is asked for it, and histograms of what requests went through.

The names are vLLM's, so that a dashboard that was made for vLLM fills.

vLLM: v1/metrics/loggers.py
"""

from __future__ import annotations

import collections
import dataclasses
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as PrometheusMetric
from prometheus_client.registry import Collector

from folovllm.config import CacheConfig
from folovllm.engine.engine_client import EngineClient
from folovllm.engine.input_processor import ProcessedInputs
from folovllm.engine.snapshots import STEP_TOKENS, EngineSnapshot
from folovllm.entrypoints import metrics_reader as reader
from folovllm.outputs import RequestOutput
from folovllm.sampling_params import SamplingParams
from folovllm.serving.openai.ended import phases
from folovllm.serving.openai.gate import Gate

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_ITL = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_E2E = (0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 120.0, 240.0, 480.0)
_N = (1.0, 2.0, 5.0, 10.0, 20.0)
_LENGTHS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
_FAMILIES: dict[type[reader.Metric], tuple[Any, list[str]]] = {
    reader.Gauge: (GaugeMetricFamily, []),
    reader.Counter: (CounterMetricFamily, []),
    reader.Vector: (CounterMetricFamily, ["position"]),
}
"""Prometheus' classes of the same, and what labels they have besides."""
_TEXTS = {name: text for _, name, text, _ in reader.STATE} | {name: text for name, text, _ in reader.SPEC_DECODE}
_TEXTS[reader.PER_POS] = "Draft tokens that were accepted, by their position."


class _EngineState(Collector):
    """Read when it is asked for: nothing is counted twice, and a server that is not asked does nothing for it."""

    def __init__(self, model_name: str, gate: Gate, cache: CacheConfig) -> None:
        self.model_name, self.gate, self.cache = model_name, gate, cache
        self.snapshots: list[EngineSnapshot] = []

    def collect(self) -> Iterator[PrometheusMetric]:
        labels = [reader.labels_of(self.model_name, each.replica or "0") for each in self.snapshots]
        of_each = [reader.metrics_of(each.stats, its) for each, its in zip(self.snapshots, labels, strict=True)]
        for same in zip(*of_each, strict=True):
            kind, more = _FAMILIES[type(same[0])]
            name = same[0].name.removeprefix("vllm:")
            family = kind(same[0].name, _TEXTS[name], labels=[*same[0].labels, *more])
            for each, found in zip(self.snapshots, same, strict=True):
                if isinstance(found, reader.Vector):
                    for place, count in enumerate(found.values):
                        family.add_metric([*found.labels.values(), str(place)], count)
                elif isinstance(found, (reader.Gauge, reader.Counter)):
                    waits_here = name == "num_requests_waiting" and each.replica is None
                    family.add_metric([*found.labels.values()], self.gate.num_waiting() if waits_here else found.value)
            yield family
        text = "Tokens that a step computes, drafts aside, from the first time that this was asked for."
        names = [*reader.labels_of(self.model_name)]
        tokens = HistogramMetricFamily("vllm:iteration_tokens_total", text, labels=names)
        for each, its in zip(self.snapshots, labels, strict=True):
            tokens.add_metric([*its.values()], _buckets(STEP_TOKENS, each.steps_by_tokens), each.step_tokens)
        yield tokens
        facts = {name: str(value) for name, value in dataclasses.asdict(self.cache).items()}
        facts["num_gpu_blocks"] = str(sum(each.stats.kv_blocks_total for each in self.snapshots))
        info = GaugeMetricFamily("vllm:cache_config_info", "How the KV cache is laid out.", labels=[*facts])
        info.add_metric([*facts.values()], 1)
        yield info


def _buckets(most: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """As Prometheus has them: each with all that is below."""
    return list(zip([*(str(float(each)) for each in most), "+Inf"], accumulate(counts), strict=True))


class _Histogram(Collector):
    """prometheus_client's own takes one value at a time, and here durations come in hundreds."""

    def __init__(self, name: str, text: str, labels: dict[str, str], buckets: tuple[float, ...]) -> None:
        self.name, self.text, self.labels, self.buckets = name, text, labels, buckets
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.buckets, value)] += times
        self.total += value * times

    def collect(self) -> Iterator[PrometheusMetric]:
        family = HistogramMetricFamily(self.name, self.text, labels=[*self.labels])
        family.add_metric([*self.labels.values()], _buckets(self.buckets, self.counts), self.total)
        yield family


class Metrics:
    """A registry for each application: two in a process do not meet. What is counted here is of all its engines."""

    def __init__(self, llm: EngineClient, model_name: str, gate: Gate) -> None:
        self.registry = CollectorRegistry()
        self.labels = labels = reader.labels_of(model_name, "all" if llm.has_replicas else "0")
        self.llm, self._state = llm, _EngineState(model_name, gate, llm.engine.config.cache_config)
        self.registry.register(self._state)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> _Histogram:
            made = _Histogram(f"vllm:{name}", text, labels, buckets)
            self.registry.register(made)
            return made

        self.ttft = histogram("time_to_first_token_seconds", "From arrival to the first token.", _TTFT)
        self.itl = histogram("inter_token_latency_seconds", "Between two tokens of one request.", _ITL)
        self.e2e = histogram("e2e_request_latency_seconds", "From arrival to the last token.", _E2E)
        self.phases = {
            name: histogram(f"request_{name}_time_seconds", f"From {text}.", _E2E)
            for name, text in {
                "queue": "arrival to the first step",
                "prefill": "the first step to the first token",
                "decode": "the first token to the last",
                "inference": "the first step to the last token",
            }.items()
        }
        self.tpot = histogram("request_time_per_output_token_seconds", "A request's mean, after its first token.", _ITL)
        self.prompt = histogram("request_prompt_tokens", "Tokens of a prompt.", _LENGTHS)
        self.generation = histogram("request_generation_tokens", "Tokens of an answer.", _LENGTHS)
        self.longest = histogram("request_max_num_generation_tokens", "Of a request's longest answer.", _LENGTHS)
        self.computed = histogram("request_prefill_kv_computed_tokens", "Of a prompt, not found cached.", _LENGTHS)
        self.params_n = histogram("request_params_n", "Sequences that were asked for.", _N)
        self.params_max_tokens = histogram("request_params_max_tokens", "The most tokens asked for.", _LENGTHS)
        finished = [*labels, "finished_reason"]
        self._success = Counter("vllm:request_success", "Finished sequences.", finished, registry=self.registry)
        text = "Requests that a step failed."
        self._failure = Counter("vllm:request_failure", text, [*labels], registry=self.registry)

    def failed(self, times: int = 1) -> None:
        self._failure.labels(**self.labels).inc(times)

    def finished(self, output: RequestOutput, params: SamplingParams) -> None:
        """By the engine's clock, which is not held up by readers."""
        self.params_n.observe(params.n)
        if params.max_tokens is not None:
            self.params_max_tokens.observe(params.max_tokens)
        self.computed.observe(len(output.prompt_token_ids) - output.num_cached_tokens)
        lengths = [len(completion.token_ids) for completion in output.outputs]
        self.prompt.observe(len(output.prompt_token_ids))
        self.longest.observe(max(lengths))
        for length in lengths:
            self.generation.observe(length)
        reasons = collections.Counter(completion.finish_reason or "abort" for completion in output.outputs)
        for reason, number in reasons.items():
            self._success.labels(**self.labels, finished_reason=reason).inc(number)
        for name, seconds in phases(output.metrics).items():
            self.phases[name].observe(seconds)
        if output.metrics is not None and output.metrics.tpot is not None:
            self.tpot.observe(output.metrics.tpot)

    async def text(self) -> bytes:
        self._state.snapshots = await self.llm.snapshots()
        self.failed(0)  # the label of what has not happened
        return generate_latest(self.registry)


class ObservedRequest:
    """One request's outputs as they pass by."""

    def __init__(self, metrics: Metrics, prompts: Sequence[ProcessedInputs]) -> None:
        self.metrics, self.prompts = metrics, prompts
        self.arrived = time.perf_counter()
        self.last = [0.0] * len(prompts)
        self.tokens = [0] * len(prompts)

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
            self.metrics.finished(output, self.prompts[place].params)
