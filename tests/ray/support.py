"""What the replicas are doing, asked from outside the server's event loop."""

from __future__ import annotations

import asyncio
from typing import Any


def looks(server: Any) -> list[Any]:
    async def ask() -> list[Any]:
        return [await server.llm.fleet.look(name) for name in server.llm.fleet.names]

    return asyncio.run(ask())
