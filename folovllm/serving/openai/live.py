"""GET /live, for the page: a snapshot of the engine twice a second as an event, with the steps since the one before. An
answer may begin and end between two of them. Several engines are shown as one, and each by its name.

vLLM: none (it leaves this to Prometheus and Grafana)
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import numpy as np

from folovllm.engine.snapshots import CELLS, LETTERS, EngineSnapshot, bar_of
from folovllm.engine.stats import EngineStats
from folovllm.serving.openai.serving_engine import ServingEngine
from folovllm.serving.openai.streams import Burst
from folovllm.spec_decode.metrics import SpecDecodingStats

PERIOD = 0.5  # seconds


async def snapshot(serving: ServingEngine, since: float) -> dict[str, Any]:
    """`replicas` has a row for each engine where there are several, also for one that is down: it has no figures. The
    others are of all together. `new_steps`: those later than `since`, in their order."""
    found = await serving.llm.snapshots()
    stats, block_map = merged(found)
    new = (step for one in found for step in one.steps if step["time"] > since)
    return {
        **dataclasses.asdict(stats),
        "waiting": serving.gate.num_waiting(),
        "prefix_hit_rate": stats.prefix_hit_rate,
        "block_map": block_map,
        "first_block": found[0].first_block if len(found) == 1 else None,
        "blocks_per_cell": found[0].blocks_per_cell,
        "sampling_defaults": serving.defaults,
        "new_steps": sorted(new, key=lambda step: step["time"]),
        "replicas": _replicas(serving.llm.replicas(), found),
    }


def _replicas(states: dict[str, str], found: list[EngineSnapshot]) -> list[dict[str, Any]]:
    stats = {each.replica: each.stats for each in found}
    return [
        {"name": name, "state": state}
        | {figure: getattr(stats.get(name), figure, None) for figure in ("running", "waiting")}
        for name, state in sorted(states.items())
    ]


def merged(snapshots: Sequence[EngineSnapshot]) -> tuple[EngineStats, str]:
    """Several engines as one: their figures added up, their pools side by side in as many cells as one has.

    Raises:
        ValueError: there is none.
    """
    if not snapshots:
        raise ValueError("snapshots must be at least one, got none")
    if len(snapshots) == 1:
        return snapshots[0].stats, snapshots[0].block_map
    names = [field.name for field in dataclasses.fields(EngineStats) if field.name != "spec_decode"]
    drafted = [each.stats.spec_decode for each in snapshots if each.stats.spec_decode is not None]
    total = EngineStats(
        **{name: sum(getattr(each.stats, name) for each in snapshots) for name in names},
        spec_decode=sum(drafted, SpecDecodingStats()) if drafted else None,
    )
    share = max(1, CELLS // len(snapshots))
    states = [np.array([LETTERS.index(letter) for letter in each.block_map]) for each in snapshots]
    return total, "".join(bar_of(state, share) for state in states)


async def snapshots(serving: ServingEngine) -> AsyncGenerator[Burst, None]:
    """Until the server shuts down."""
    since = time.time()
    while not serving.gate.draining:
        seen = await snapshot(serving, since)
        since = max([since, *(step["time"] for step in seen["new_steps"])])
        yield Burst.of([seen])
        await asyncio.sleep(PERIOD)
