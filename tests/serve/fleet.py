"""Replicas in this process, so that a test can look into their engines: a fleet without a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from folovllm import LLMEngine
from folovllm.engine.messages import EngineCoreOutputs, EngineCoreRequest
from folovllm.serving.replicas.client import ReplicaDiedError
from folovllm.serving.replicas.options import ReplicaOptions
from folovllm.serving.replicas.replica import EngineReplica


class LocalFleet:
    """A name in `dead` is a replica whose process has died: what is asked of it ends in an error."""

    def __init__(self, count: int, prefill: int = 0, **engine: Any) -> None:
        names = ReplicaOptions(replicas=count, prefill_replicas=prefill).names
        self.replicas = {name: EngineReplica(name, "embedded", engine) for name in names}
        self.dead: set[str] = set()
        self.asked: list[str] = []

    @property
    def engines(self) -> list[LLMEngine]:
        return [replica.engine for replica in self.replicas.values()]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.replicas)

    async def generate(self, name: str, request: EngineCoreRequest) -> AsyncGenerator[EngineCoreOutputs, None]:
        self.asked.append(name)
        async with aclosing(self.replicas[name].generate(request)) as messages:
            async for message in messages:
                if name in self.dead:
                    raise ReplicaDiedError(f"{name} died under this request")
                yield message

    async def call(self, name: str, method: str, *arguments: Any) -> Any:
        if name in self.dead:
            raise ReplicaDiedError(name)
        return await getattr(self.replicas[name], method)(*arguments)

    def close(self) -> None:
        """The engines' threads end with the process."""

    def is_idle(self) -> bool:
        return all(
            (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)
            for stats in (replica.engine.stats() for replica in self.replicas.values())
        )


def facts_of(fleet: LocalFleet) -> Any:
    return asyncio.run(fleet.replicas[fleet.names[0]].facts())
