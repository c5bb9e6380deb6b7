"""The front's engine: AsyncLLM's interface, and behind it a router and replicas.

    generate() ─▶ router ─▶ replica A   up, 3 requests
                     │      replica B   up, 1 request
                     └────▶ replica C   down: nothing is sent there until it answers again

A request lives on one replica from its first token to its last. When that one dies, so does the request, with an error
at once: its tokens cannot be had elsewhere without computing them anew, and only the client knows whether to ask again.

vLLM: v1/engine/core_client.py (DPLBAsyncMPClient)
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, Protocol

from folovllm.engine.input_processor import Prompt
from folovllm.engine.looks import EngineLook, Load
from folovllm.outputs import RequestOutput
from folovllm.sampling_params import RequestOutputKind, SamplingParams
from folovllm.serving.front_engine import FrontEngine, RemoteFacts
from folovllm.serving.openai.errors import APIError
from folovllm.serving.replicas.scaling import Scaling
from folovllm.serving.routing import Router, prefix_hashes
from folovllm.serving.wire import Arriving, Ask, Growing
from folovllm.utils.logging import init_logger

logger = init_logger(__name__)

PERIOD = 0.5
"""Seconds between two looks at a replica."""
GLANCE = 2.0
"""Seconds that /metrics and the page wait for a replica; one that takes longer is left out of this look."""
PATIENCE = 5.0
"""Seconds after which a replica that does not answer counts as down."""


class ReplicaDiedError(RuntimeError):
    """The replica that a request was on is no more."""


class Fleet(Protocol):
    """Replicas by name, wherever they are. What a replica raises comes through as it is."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def generate(self, name: str, ask: Ask) -> AsyncGenerator[RequestOutput, None]: ...

    async def abort(self, name: str, request_id: str) -> None: ...

    async def look(self, name: str) -> EngineLook: ...

    async def reset_prefix_cache(self, name: str) -> None: ...

    async def add(self) -> str: ...

    async def remove(self, name: str) -> None: ...

    def close(self) -> None: ...


class ReplicatedLLM:
    """An EngineClient over a fleet. It serves one event loop.

    Args:
        router: without replicas; those that answer are kept in it.
        scaling: bounds and target; None leaves the fleet as it is.
    """

    def __init__(self, fleet: Fleet, router: Router, facts: RemoteFacts, scaling: Scaling | None = None) -> None:
        self.fleet, self.router, self.scaling = fleet, router, scaling
        self.engine = FrontEngine(facts)
        self.block_size = facts.config.cache_config.block_size
        self._requests: dict[str, int] = dict.fromkeys(fleet.names, 0)  # unfinished, of each replica
        self._tasks: set[asyncio.Task[Any]] = set()
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._closed = False
        for name in fleet.names:
            router.add_replica(name)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def replicas(self) -> dict[str, str]:
        self._watch()
        return {name: "up" if name in self.router.replicas else "down" for name in self._requests}

    def load(self) -> Load:
        """By the front's own count, which is never late. A request counts as one row."""
        rows = self.engine.config.scheduler_config.max_num_seqs
        up = [self._requests[name] for name in self.router.replicas]
        waiting = sum(max(0, count - rows) for count in up)
        return Load(rows * len(up), sum(up) - waiting, waiting, 0)

    async def looks(self) -> list[EngineLook]:
        """A look at each replica that is up. Raises APIError: none answers."""
        self._watch()
        names = sorted(self.router.replicas)
        asked = (self._look(name, GLANCE) for name in names)
        found = await asyncio.gather(*asked, return_exceptions=True)
        looks = [look for look in found if isinstance(look, EngineLook)]
        if not looks:
            raise no_replica()
        return looks

    async def reset_prefix_caches(self) -> None:
        """Of those that are up; a new one has nothing to forget."""
        await asyncio.gather(*(self.fleet.reset_prefix_cache(name) for name in self.router.replicas))

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        output_kind: RequestOutputKind | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """As AsyncLLM.generate, but without DELTA, which no server asks for. Every request is checked here, before a
        replica hears of it.

        Raises:
            ValueError: output_kind is DELTA.
            APIError: no replica is up.
            ReplicaDiedError: the replica died under this request.
        """
        if output_kind is RequestOutputKind.DELTA:
            raise ValueError("output_kind must be CUMULATIVE or FINAL_ONLY where replicas serve, got DELTA")
        self._watch()
        request_id = request_id or uuid.uuid4().hex
        checked = self.engine.checked(prompt, sampling_params)
        if not self.router.replicas:
            raise no_replica()
        hashes = prefix_hashes(checked.token_ids, self.block_size, checked.cache_salt)
        name = self.router.choose(hashes, self._requests)
        ask = Ask.of(request_id, checked, priority)
        self._requests[name] += 1
        stream = _Stream(self.fleet.generate(name, ask), self.engine.growing(checked))
        try:
            async with aclosing(stream.outputs()) as outputs:
                async for output in outputs:
                    if output.finished or output_kind is not RequestOutputKind.FINAL_ONLY:
                        yield output
        except ReplicaDiedError:
            self._down(name)
            raise
        finally:
            if name in self._requests:
                self._requests[name] -= 1
            if not stream.is_over:
                self._later(self.fleet.abort(name, request_id))

    async def shutdown(self) -> None:
        """Let go of the replicas."""
        if self._closed:
            return
        self._closed = True
        tasks = [*self._tasks, *self._watching.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self.fleet.close)

    async def _look(self, name: str, seconds: float) -> EngineLook:
        # Not asyncio.wait_for: Python 3.11's loses a cancellation that comes together with the result, and then the
        # watch goes on for ever (python/cpython#86296).
        async with asyncio.timeout(seconds):
            return await self.fleet.look(name)

    def _down(self, name: str) -> None:
        if name in self.router.replicas:
            self.router.remove_replica(name)

    def _later(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # an abort that failed needs no report: its replica is gone

    def _watch(self) -> None:
        """From the first call in an event loop on."""
        if self._closed:
            return
        for name in self._requests:
            if name not in self._watching:
                self._watching[name] = asyncio.get_running_loop().create_task(self._watch_one(name))
        if self.scaling is not None and "" not in self._watching:
            self._watching[""] = asyncio.get_running_loop().create_task(self._scale())

    async def _watch_one(self, name: str) -> None:
        while name in self._requests:
            try:
                await self._look(name, PATIENCE)
            except Exception:  # it has died, or is being started: whatever it is, nothing should be sent there
                self._down(name)
            else:
                if name not in self.router.replicas and name in self._requests:
                    self.router.add_replica(name)
            await asyncio.sleep(PERIOD)

    async def _scale(self) -> None:
        assert self.scaling is not None
        while True:
            await asyncio.sleep(PERIOD)
            here = len(self._requests)
            wanted = self.scaling.wanted(here, sum(self._requests.values()), time.monotonic())
            for _ in range(wanted - here):
                try:
                    name = await self.fleet.add()
                except Exception as error:  # such as a machine that left the cluster; the load may ask again
                    logger.warning("No further replica could be started; %d go on: %s", len(self._requests), error)
                    break
                self._requests[name] = 0
                self._watch()
            if wanted < here:
                await self._remove(min(self._requests, key=self._requests.__getitem__))

    async def _remove(self, name: str) -> None:
        """Nothing more is sent there; what runs there is finished; then it ends."""
        self._watching.pop(name).cancel()
        self._down(name)
        while self._requests[name]:
            await asyncio.sleep(PERIOD)
        del self._requests[name]
        await self.fleet.remove(name)


def no_replica() -> APIError:
    return APIError(503, "no replica is up: try again", code="no_replica", headers={"Retry-After": "1"})


class _Stream(Arriving):
    """Reads a replica as fast as it sends."""

    def __init__(self, differences: AsyncGenerator[RequestOutput, None], growing: Growing) -> None:
        super().__init__(growing)
        self.differences = differences

    async def outputs(self) -> AsyncGenerator[RequestOutput, None]:
        pump = asyncio.get_running_loop().create_task(self._pump())
        try:
            async with aclosing(super().outputs()) as outputs:
                async for output in outputs:
                    yield output
        finally:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)

    async def _pump(self) -> None:
        try:
            async with aclosing(self.differences) as each:
                async for gained in each:
                    self.add(gained)
            self.fail(ReplicaDiedError("the replica ended this request before its end"))
        except Exception as error:
            self.fail(error)
