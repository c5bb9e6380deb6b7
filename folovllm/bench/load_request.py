"""A request of a load, and what a server is that takes it: one in this process, or one behind HTTP.

vLLM: benchmarks/datasets/
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from folovllm.bench.metrics import RequestTimes
from folovllm.bench.report import Row


@dataclass(frozen=True)
class LoadRequest:
    """`prompt` is token ids, or a text that the server splits. `sampling`: fields of SamplingParams."""

    prompt: list[int] | str
    max_tokens: int
    sampling: dict[str, Any] = field(default_factory=dict)


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
