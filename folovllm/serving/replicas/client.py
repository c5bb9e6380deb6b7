"""ReplicatedLLM: the client of several engines, through a router.

    generate() ─▶ router ─▶ replica A   up, 3 requests
                     │      replica B   up, 1 request
                     └────▶ replica C   down: nothing is sent there until it answers again

A request lives on one replica from its first token to its last. When that one dies, so does the request, with an error
at once: its tokens cannot be had elsewhere without computing them anew, and only the client knows whether to ask again.

vLLM: v1/engine/core_client.py (DPLBAsyncMPClient)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

from folovllm.engine.engine_client import EngineClient, OutputCollector
from folovllm.engine.input_processor import Checked
from folovllm.engine.messages import EngineCoreRequest, EngineCoreRequestType
from folovllm.engine.snapshots import EngineSnapshot, Load
from folovllm.outputs import RequestOutput
from folovllm.serving.front_engine import FrontEngine, RemoteFacts
from folovllm.serving.openai.errors import APIError
from folovllm.serving.routing import Router, prefix_hashes

PERIOD = 0.5
"""Seconds between two questions to a replica whether it is up."""
SNAPSHOT_SECONDS = 2.0
"""That /metrics and the page wait for a replica; one that takes longer is left out."""
UP_SECONDS = 5.0
"""After which a replica that does not answer counts as down."""


class ReplicaDiedError(RuntimeError):
    """The replica that a request was on is no more."""


class Fleet(Protocol):
    """Replicas by name, wherever they are. What a replica raises comes through as it is."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def generate(self, name: str, request: EngineCoreRequest) -> AsyncGenerator[RequestOutput, None]: ...

    async def snapshot(self, name: str) -> EngineSnapshot: ...

    async def reset_prefix_cache(self, name: str) -> None: ...

    def close(self) -> None: ...


class ReplicatedLLM(EngineClient):
    """Of a fleet. router: without replicas; those that answer are kept in it."""

    engine: FrontEngine

    def __init__(self, fleet: Fleet, router: Router, facts: RemoteFacts) -> None:
        super().__init__(FrontEngine(facts))
        self.fleet, self.router = fleet, router
        self.block_size = facts.config.cache_config.block_size
        self._requests: dict[str, int] = dict.fromkeys(fleet.names, 0)  # unfinished, of each replica
        self._reading: dict[int, asyncio.Task[None]] = {}  # of unfinished requests, by number
        self._watching: dict[str, asyncio.Task[None]] = {}
        for name in fleet.names:
            router.add_replica(name)

    def replicas(self) -> dict[str, str]:
        self._watch()
        return {name: "up" if name in self.router.replicas else "down" for name in self._requests}

    def load(self) -> Load:
        """By this client's count, which is never late. A request counts as one row."""
        rows = self.engine.config.scheduler_config.max_num_seqs
        up = [self._requests[name] for name in self.router.replicas]
        waiting = sum(max(0, count - rows) for count in up)
        return Load(rows * len(up), sum(up) - waiting, waiting, 0)

    async def snapshots(self) -> list[EngineSnapshot]:
        """Of those that are up. Raises APIError: none answers."""
        self._watch()
        asked = (self._snapshot(name, SNAPSHOT_SECONDS) for name in sorted(self.router.replicas))
        found = await asyncio.gather(*asked, return_exceptions=True)
        snapshots = [each for each in found if isinstance(each, EngineSnapshot)]
        if not snapshots:
            raise no_replica()
        return snapshots

    async def reset_prefix_caches(self) -> None:
        """Of those that are up; a new one has nothing to forget."""
        await asyncio.gather(*(self.fleet.reset_prefix_cache(name) for name in self.router.replicas))

    async def shutdown(self) -> None:
        """Lets go of the replicas."""
        if self.is_closed:
            return
        self._shut_down()
        tasks = [*self._reading.values(), *self._watching.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self.fleet.close)

    async def _open(self) -> None:
        """Raises APIError: no replica is up."""
        self._watch()
        if not self.router.replicas:
            raise no_replica()

    def _collector(self, request_id: str, checked: Checked) -> OutputCollector:
        return self.engine.collector(request_id, checked)

    def _send(self, kind: EngineCoreRequestType, *arguments: Any) -> None:
        number = arguments[0]
        if kind is EngineCoreRequestType.ADD:
            request: EngineCoreRequest = arguments[1]
            checked: Checked = request.prompt  # type: ignore[assignment]  # by generate()
            hashes = prefix_hashes(checked.token_ids, self.block_size, checked.cache_salt)
            name = self.router.choose(hashes, self._requests)
            self._requests[name] += 1
            work = self._read(name, request.portable(), self._collectors[number])
            self._reading[number] = asyncio.get_running_loop().create_task(work)
            self._reading[number].add_done_callback(partial(self._has_read, number, name))
        elif number in self._reading:
            self._reading[number].cancel()

    async def _read(self, name: str, request: EngineCoreRequest, collector: OutputCollector) -> None:
        """The outputs of one request, as fast as its replica sends them."""
        try:
            async with aclosing(self.fleet.generate(name, request)) as deltas:
                async for delta in deltas:
                    collector.put(delta)
            collector.put(ReplicaDiedError("the replica ended this request before its end"))
        except Exception as error:
            if isinstance(error, ReplicaDiedError):
                self._down(name)
            collector.put(error)

    def _has_read(self, number: int, name: str, _: asyncio.Task[None]) -> None:
        del self._reading[number]
        self._requests[name] -= 1

    async def _snapshot(self, name: str, seconds: float) -> EngineSnapshot:
        # Not asyncio.wait_for: Python 3.11's loses a cancellation that comes together with the result, and then the
        # watch goes on for ever (python/cpython#86296).
        async with asyncio.timeout(seconds):
            return await self.fleet.snapshot(name)

    def _down(self, name: str) -> None:
        if name in self.router.replicas:
            self.router.remove_replica(name)

    def _watch(self) -> None:
        """From the first call in an event loop on."""
        if self.is_closed:
            return
        for name in self._requests:
            if name not in self._watching:
                self._watching[name] = asyncio.get_running_loop().create_task(self._watch_one(name))

    async def _watch_one(self, name: str) -> None:
        while True:
            try:
                await self._snapshot(name, UP_SECONDS)
            except Exception:  # it has died, or is being started: whatever it is, nothing should be sent there
                self._down(name)
            else:
                if name not in self.router.replicas:
                    self.router.add_replica(name)
            await asyncio.sleep(PERIOD)


def no_replica() -> APIError:
    return APIError(503, "no replica is up: try again", code="no_replica", headers={"Retry-After": "1"})
