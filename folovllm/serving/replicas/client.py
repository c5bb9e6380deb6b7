"""ReplicatedLLM: the client of several engines, through a router.

    generate() ─▶ router ─▶ replica A   up, 3 requests
                     │      replica B   up, 1 request
                     └────▶ replica C   down: nothing is sent there until it answers again

A request lives on one replica from its first token to its last. When that one dies, so does the request, with an error
at once: its tokens cannot be had elsewhere without computing them anew, and only the client knows whether to ask again.

With replicas for prefill, the prompt goes to one of those first, and nothing but the tier carries blocks:

    router ─ long prompt, 1 token ─▶ prefill-0 ─ full blocks under their hashes ─▶ tier ─ prefix hit ─▶ replica-1
           ─ the same request, when they have been written ─────────────────────────────────────────────▶

The second one computes what it does not find, so whatever happens to the first costs time and no request. A prompt of
fewer than DEPTH full blocks is not worth the way.

vLLM: v1/engine/core_client.py (DPLBAsyncMPClient); for prefill apart examples/online_serving/disaggregated_serving, and
DistServe (Zhong et al., 2024) for the idea
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from folovllm.engine.engine_client import EngineClient
from folovllm.engine.input_processor import ProcessedInputs
from folovllm.engine.messages import (
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineCoreRequestType,
    Key,
    ReadyResponse,
    SchedulerStats,
)
from folovllm.engine.snapshots import EngineSnapshot
from folovllm.sampling_params import SamplingParams
from folovllm.serving.mp_client import RemoteEngine
from folovllm.serving.openai.errors import APIError
from folovllm.serving.replicas.options import PREFILL
from folovllm.serving.routing import DEPTH, Router, prefix_hashes
from folovllm.utils.logging import init_logger

logger = init_logger(__name__)

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

    def generate(self, name: str, request: EngineCoreRequest) -> AsyncGenerator[EngineCoreOutputs, None]: ...

    async def call(self, name: str, method: str, *arguments: Any) -> Any:
        """Another method of that EngineReplica."""

    def close(self) -> None: ...


class ReplicatedLLM(EngineClient):
    """Of a fleet. Args: the routers are without replicas, and those that answer are kept in them; `prefill_router` has
    those whose names begin with PREFILL."""

    engine: RemoteEngine
    has_replicas = True

    def __init__(
        self, fleet: Fleet, router: Router, facts: ReadyResponse, prefill_router: Router | None = None
    ) -> None:
        super().__init__(RemoteEngine(facts))
        self.fleet, self.router, self.prefill_router = fleet, router, prefill_router or router
        self.block_size = facts.config.cache_config.block_size
        self._requests: dict[str, int] = dict.fromkeys(fleet.names, 0)  # unfinished, of each replica
        self._reading: dict[Key, tuple[str, asyncio.Task[None]]] = {}  # replicas' names and tasks, by number
        self._ending: set[asyncio.Task[None]] = set()
        self._watching: dict[str, asyncio.Task[None]] = {}
        for name in fleet.names:
            self._router_of(name).add_replica(name)

    def replicas(self) -> dict[str, str]:
        self._watch()
        return {name: "up" if self._is_up(name) else "down" for name in self._requests}

    def load(self) -> SchedulerStats:
        """By this client's count, which is never late. A request counts as one row."""
        rows = self.engine.config.scheduler_config.max_num_seqs
        up = [self._requests[name] for name in self.router.replicas]
        waiting = sum(max(0, count - rows) for count in up)
        return SchedulerStats(rows * len(up), sum(up) - waiting, waiting, 0)

    async def snapshots(self) -> list[EngineSnapshot]:
        """Of those that are up. Raises APIError: none answers."""
        self._watch()
        asked = (self._snapshot(name, SNAPSHOT_SECONDS) for name in self._requests if self._is_up(name))
        found = await asyncio.gather(*asked, return_exceptions=True)
        snapshots = [each for each in found if isinstance(each, EngineSnapshot)]
        if not snapshots:
            raise no_replica()
        return snapshots

    async def reset_prefix_caches(self) -> None:
        """Of those that are up; a new one has nothing to forget."""
        up = [name for name in self._requests if self._is_up(name)]
        await asyncio.gather(*(self.fleet.call(name, "reset_prefix_cache") for name in up))

    async def shutdown(self) -> None:
        """Lets go of the replicas."""
        if self.is_closed:
            return
        self._shut_down()
        tasks = [*(task for _, task in self._reading.values()), *self._ending, *self._watching.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self.fleet.close)

    async def _open(self) -> None:
        """Raises APIError: no replica is up."""
        self._watch()
        if not self.router.replicas:
            raise no_replica()

    def _send(self, kind: EngineCoreRequestType, *arguments: Any) -> None:
        if kind is EngineCoreRequestType.ADD:
            request: EngineCoreRequest = arguments[0]
            checked: ProcessedInputs = request.prompt  # type: ignore[assignment]  # by generate()
            hashes = prefix_hashes(checked.token_ids, self.block_size, checked.cache_salt)
            name = self.router.choose(hashes, self._requests)
            self._requests[name] += 1
            task = asyncio.get_running_loop().create_task(self._read(name, request, hashes))
            self._reading[request.key] = name, task
            task.add_done_callback(partial(self._has_read, name, request.key))
        elif (reading := self._reading.get(arguments[0])) is not None:
            name, task = reading
            if len(arguments) == 2:
                task.cancel()
            else:  # one sequence of several
                ending = asyncio.get_running_loop().create_task(self.fleet.call(name, "abort", *arguments))
                self._ending.add(ending)
                ending.add_done_callback(self._ending.discard)

    async def _read(self, name: str, request: EngineCoreRequest, hashes: list[bytes]) -> None:
        """What comes of one request, as fast as its replica sends it."""
        error: Exception = ReplicaDiedError("the replica ended this request before its end")
        try:
            await self._prefill(request, hashes)
            async with aclosing(self.fleet.generate(name, request.portable())) as messages:
                async for message in messages:
                    self.receive(message)
        except Exception as raised:
            error = raised
            if isinstance(error, ReplicaDiedError):
                self._down(name)
        self.receive(EngineCoreOutputs(failures={request.key: error}))  # nothing new to one that has ended

    async def _prefill(self, request: EngineCoreRequest, hashes: list[bytes]) -> None:
        """Until a replica for prefill has the prompt's blocks in the tier, or has failed: then they are computed where
        the tokens are. So are prompts whose log-probabilities are asked for, which cannot be found in a cache, and
        those without tokens to come."""
        checked: ProcessedInputs = request.prompt  # type: ignore[assignment]  # by generate()
        ends_with_prompt = checked.pooling_params is not None
        is_worth_it = len(hashes) == DEPTH and checked.params.prompt_logprobs is None and not ends_with_prompt
        if self.prefill_router is self.router or not self.prefill_router.replicas or not is_worth_it:
            return
        name = self.prefill_router.choose(hashes, self._requests)
        self._requests[name] += 1
        try:
            async with aclosing(self.fleet.generate(name, prompt_only(request))) as messages:
                async for _ in messages:
                    pass
            await self.fleet.call(name, "flush_kv_offload")
        except ReplicaDiedError:
            self._down(name)
        except Exception as error:
            logger.warning("%s has not computed a prompt, which is computed again: %s", name, error)
        finally:
            self._requests[name] -= 1

    def _has_read(self, name: str, key: Key, _: asyncio.Task[None]) -> None:
        del self._reading[key]
        self._requests[name] -= 1

    async def _snapshot(self, name: str, seconds: float) -> EngineSnapshot:
        # Not asyncio.wait_for: Python 3.11's loses a cancellation that comes together with the result, and then the
        # watch goes on for ever (python/cpython#86296).
        async with asyncio.timeout(seconds):
            found: EngineSnapshot = await self.fleet.call(name, "snapshot")
            return found

    def _router_of(self, name: str) -> Router:
        return self.prefill_router if name.startswith(PREFILL) else self.router

    def _is_up(self, name: str) -> bool:
        return name in self._router_of(name).replicas

    def _down(self, name: str) -> None:
        if self._is_up(name):
            self._router_of(name).remove_replica(name)

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
                if not self._is_up(name):
                    self._router_of(name).add_replica(name)
            await asyncio.sleep(PERIOD)


def prompt_only(request: EngineCoreRequest) -> EngineCoreRequest:
    """The same prompt under the same hashes, and one token that no one reads."""
    checked: ProcessedInputs = request.prompt  # type: ignore[assignment]  # by generate()
    params = SamplingParams(temperature=0, max_tokens=1)
    return replace(request, prompt=replace(checked, params=params), params=params)


def no_replica() -> APIError:
    return APIError(503, "no replica is up: try again", code="no_replica", headers={"Retry-After": "1"})
