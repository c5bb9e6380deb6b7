"""The engine live, for the page: a look at it twice a second as an event.

The block map is the pool seen as a bar of cells. A cell stands for one block, or for several where there are more
blocks than cells, of which the busiest counts.

vLLM: none (it leaves this to Prometheus and Grafana)
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np

from folovllm.core.cached_block_pool import CachedBlockPool
from folovllm.entrypoints.openai.serving import Serving

CELLS = 384
PERIOD = 0.5  # seconds


def look(serving: Serving) -> dict[str, Any]:
    stats = serving.llm.stats()
    return {
        **dataclasses.asdict(stats),
        "waiting": serving.gate.num_waiting(),
        "prefix_hit_rate": stats.prefix_hit_rate,
        "block_map": block_map(serving),
    }


def block_map(serving: Serving) -> str:
    """A letter for each cell: f free, c cached, u in use, s shared: the busiest of its blocks."""
    pool = serving.llm.engine.scheduler.kv.pool
    refs = np.array(pool.all_refs())
    state = np.minimum(refs, 2) + (refs > 0)
    if isinstance(pool, CachedBlockPool):
        cached = np.array(pool.cached_blocks(), np.int64) - 1
        state[cached] = np.maximum(state[cached], 1)
    per_cell = -(-len(state) // CELLS)
    padded = np.pad(state, (0, -len(state) % per_cell))
    return "".join("fcus"[busiest] for busiest in padded.reshape(-1, per_cell).max(axis=1))


async def looks(serving: Serving) -> AsyncGenerator[dict[str, Any], None]:
    """Until the server shuts down."""
    while not serving.gate.draining:
        yield look(serving)
        await asyncio.sleep(PERIOD)
