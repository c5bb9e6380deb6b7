"""The engine live, for the page: a look at it twice a second as an event. Several engines are shown as one.

vLLM: none (it leaves this to Prometheus and Grafana)
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from typing import Any

from folovllm.entrypoints.clients.looks import together
from folovllm.entrypoints.openai.serving import Serving

PERIOD = 0.5  # seconds


async def look(serving: Serving) -> dict[str, Any]:
    """`replicas` names the engines where there are several; the other figures are of all together."""
    found = await serving.llm.looks()
    stats, block_map = together(found)
    return {
        **dataclasses.asdict(stats),
        "waiting": serving.gate.num_waiting(),
        "prefix_hit_rate": stats.prefix_hit_rate,
        "block_map": block_map,
        "replicas": [one.replica for one in found if one.replica is not None],
    }


async def looks(serving: Serving) -> AsyncGenerator[dict[str, Any], None]:
    """Until the server shuts down."""
    while not serving.gate.draining:
        yield await look(serving)
        await asyncio.sleep(PERIOD)
