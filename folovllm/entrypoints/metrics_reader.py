"""The engine's metrics in one table: `/metrics` shows it to Prometheus, and LLM.get_metrics() to a program.

vLLM: v1/metrics/reader.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from folovllm.engine.stats import EngineStats
from folovllm.spec_decode.metrics import SpecDecodingStats


@dataclass
class Metric:
    name: str
    labels: dict[str, str] = field(default_factory=dict, kw_only=True)


@dataclass
class Gauge(Metric):
    """What goes up and down."""

    value: float


@dataclass
class Counter(Metric):
    """What only goes up."""

    value: int


@dataclass
class Vector(Metric):
    """Counters in an order of their own. Prometheus knows none: there each has a label more."""

    values: list[int]


STATE: list[tuple[type[Gauge] | type[Counter], str, str, Callable[[EngineStats], float]]] = [
    (Gauge, "num_requests_running", "Requests in the batch.", lambda stats: stats.running),
    (Gauge, "num_requests_waiting", "Requests that wait for room, in the engine or before it.",
     lambda stats: stats.waiting),
    (Gauge, "num_requests_swapped", "Requests whose blocks are in CPU memory.", lambda stats: stats.swapped),
    (Gauge, "kv_cache_usage_perc", "Share of the KV cache's blocks in use; 1 is all of them.",
     lambda stats: stats.kv_blocks_used / stats.kv_blocks_total if stats.kv_blocks_total else 0.0),
    (Counter, "prompt_tokens", "Prompt tokens that were computed.", lambda stats: stats.prompt_tokens),
    (Counter, "generation_tokens", "Tokens that were generated.", lambda stats: stats.output_tokens),
    (Counter, "num_preemptions", "Sequences that had to give way.", lambda stats: stats.preemptions),
    (Counter, "prefix_cache_queries", "Prompt tokens that were looked up in the cache.",
     lambda stats: stats.prefix_cache_queries),
    (Counter, "prefix_cache_hits", "Prompt tokens that were found there.", lambda stats: stats.prefix_cache_hits),
    (Counter, "external_prefix_cache_queries", "Of these, tokens that the KV cache itself did not have.",
     lambda stats: stats.prefix_cache_queries - stats.prefix_cache_hits + stats.external_prefix_cache_hits),
    (Counter, "external_prefix_cache_hits", "Of these, tokens that were in CPU memory or in files.",
     lambda stats: stats.external_prefix_cache_hits),
    (Counter, "kv_offload_tiering_chunk_queries", "Blocks that were looked for in files.",
     lambda stats: stats.kv_offload_tiering_chunk_queries),
    (Counter, "kv_offload_tiering_chunk_hits", "Blocks that were read from files.",
     lambda stats: stats.kv_offload_tiering_chunk_hits),
    (Counter, "engine_steps", "Steps of the engine.", lambda stats: stats.steps),
]  # fmt: skip


SPEC_DECODE: list[tuple[str, str, Callable[[SpecDecodingStats], int]]] = [
    ("spec_decode_num_drafts", "Drafts.", lambda stats: stats.num_drafts),
    ("spec_decode_num_draft_tokens", "Tokens that were guessed.", lambda stats: stats.num_draft_tokens),
    ("spec_decode_num_accepted_tokens", "Guesses that were kept.", lambda stats: stats.num_accepted_tokens),
]
"""Only there where tokens are guessed."""
PER_POS = "spec_decode_num_accepted_tokens_per_pos"


def labels_of(model_name: str, engine: str = "0") -> dict[str, str]:
    """Of every metric. engine: its name, where there are several."""
    return {"model_name": model_name, "engine": engine}


def metrics_of(stats: EngineStats, labels: dict[str, str]) -> list[Metric]:
    """Under vLLM's names, for a program finds them by these."""
    found: list[Metric] = [
        kind(f"vllm:{name}", value_of(stats), labels=labels)  # type: ignore[arg-type]
        for kind, name, _, value_of in STATE
    ]
    if (drafted := stats.spec_decode) is not None:
        found += [Counter(f"vllm:{name}", value_of(drafted), labels=labels) for name, _, value_of in SPEC_DECODE]
        found.append(Vector(f"vllm:{PER_POS}", list(drafted.num_accepted_tokens_per_pos), labels=labels))
    return found
