"""The engine live, for the page: a look at it twice a second as an event. Several engines are shown as one, and each by
its name.

vLLM: none (it leaves this to Prometheus and Grafana)
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from typing import Any

from folovllm.engine.looks import EngineLook, together
from folovllm.serving.openai.serving import Serving
from folovllm.serving.openai.streams import Burst

PERIOD = 0.5  # seconds


async def look(serving: Serving) -> dict[str, Any]:
    """`replicas` has a row for each engine where there are several, also for one that is down: it has no figures. The
    others are of all together."""
    found = await serving.llm.looks()
    stats, block_map = together(found)
    return {
        **dataclasses.asdict(stats),
        "waiting": serving.gate.num_waiting(),
        "prefix_hit_rate": stats.prefix_hit_rate,
        "block_map": block_map,
        "replicas": _replicas(serving.llm.replicas(), found),
    }


def _replicas(states: dict[str, str], found: list[EngineLook]) -> list[dict[str, Any]]:
    stats = {each.replica: each.stats for each in found}
    return [
        {
            "name": name,
            "state": state,
            "running": stats[name].running if name in stats else None,
            "waiting": stats[name].waiting if name in stats else None,
        }
        for name, state in sorted(states.items())
    ]


async def looks(serving: Serving) -> AsyncGenerator[Burst, None]:
    """Until the server shuts down."""
    while not serving.gate.draining:
        yield Burst.of([await look(serving)])
        await asyncio.sleep(PERIOD)
