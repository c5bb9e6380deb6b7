"""Replicas as applications of Ray Serve, one each. The only file that knows Ray.

    Serve application folovllm-7c1e-replica-0 ── one deployment of one replica ── one process, one engine
    Serve application folovllm-7c1e-replica-1 ── …

What Serve does for us: it finds a machine with room, starts the process there, asks it once a second whether it is
well, and starts another in its place where it is not. What it does not do: choose the replica. Its own way to plug a
router in is an alpha interface; an application for each replica needs the stable one alone, and a name that outlives
the process.

vLLM: v1/engine/utils.py (CoreEngineActorManager)
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import folovllm
from folovllm.engine.messages import EngineCoreOutputs, EngineCoreRequest, ReadyResponse
from folovllm.engine.snapshots import EngineSnapshot
from folovllm.serving.replicas.client import ReplicaDiedError
from folovllm.serving.replicas.replica import EngineReplica
from folovllm.utils.checks import wrong

MANY = 100_000
"""Requests that Serve lets through to a replica at a time: the engine has a queue, and the front a limit."""


@dataclass(frozen=True)
class ClusterOptions:
    """`address` is a Ray cluster's, or None for one on this machine alone. `cpus` and `gpus` are what a replica takes
    of a machine. `object_store_mb` is of a cluster on this machine: tokens are small."""

    address: str | None = None
    cpus: float = 1
    gpus: float = 0
    object_store_mb: int = 200
    temp_dir: str | None = None


class RayFleet:
    """A Fleet of EngineReplicas.

    Raises:
        ValueError: the cluster cannot be reached, has no room for so many, or a replica could not be started.
    """

    def __init__(self, model: str, options: dict[str, Any], num_replicas: int, most: int, cluster: ClusterOptions):
        self.model, self.options, self.cluster = model, options, cluster
        self._is_ours = _connect(cluster, most)
        self._front = f"folovllm-{uuid.uuid4().hex[:4]}"
        self._handles: dict[str, Any] = {}
        self._count = 0
        try:
            self._check_room(most)
            self._start(num_replicas)
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._handles)

    async def facts(self, name: str) -> ReadyResponse:
        found: ReadyResponse = await self._handles[name].facts.remote()
        return found

    async def generate(self, name: str, request: EngineCoreRequest) -> AsyncGenerator[EngineCoreOutputs, None]:
        from ray.exceptions import RayActorError, RayTaskError

        stream = self._handles[name].options(stream=True).generate.remote(request)
        is_over = False
        try:
            async for message in stream:
                yield message
            is_over = True
        except RayActorError as error:
            raise ReplicaDiedError(f"{name} died under this request") from error
        except RayTaskError as error:
            raise error.cause from None
        finally:
            if not is_over:
                stream.cancel()

    async def abort(self, name: str, key: int, request_id: str, index: int | None = None) -> None:
        if name in self._handles:
            await self._handles[name].abort.remote(key, request_id, index)

    async def reset_prefix_cache(self, name: str) -> None:
        await self._handles[name].reset_prefix_cache.remote()

    async def snapshot(self, name: str) -> EngineSnapshot:
        found: EngineSnapshot = await self._handles[name].snapshot.remote()
        return found

    async def add(self) -> str:
        (name,) = await asyncio.to_thread(self._start, 1)
        return name

    async def remove(self, name: str) -> None:
        from ray import serve

        del self._handles[name]
        await asyncio.to_thread(serve.delete, f"{self._front}-{name}")

    def close(self) -> None:
        """End our replicas; and Ray, where it was started for them."""
        import ray
        from ray import serve

        if not ray.is_initialized():
            return
        if not self._is_ours:  # one that is ours ends as a whole, and Serve with it
            for name in self._handles:
                serve.delete(f"{self._front}-{name}", _blocking=False)
        self._handles = {}
        ray.shutdown()

    def _check_room(self, most: int) -> None:
        import ray

        there = ray.cluster_resources()
        for resource, option, each in (
            ("CPU", "replica_cpus", self.cluster.cpus),
            ("GPU", "replica_gpus", self.cluster.gpus),
        ):
            if each * most > there.get(resource, 0):
                raise wrong(
                    option,
                    f"leave room for {most} replicas in a cluster of {there.get(resource, 0):g} {resource}s",
                    each,
                    "lower it, ask for fewer replicas, or add machines to the cluster",
                )

    def _start(self, count: int) -> list[str]:
        from ray import serve

        deployment = serve.deployment(
            name="engine",
            num_replicas=1,
            max_ongoing_requests=MANY,
            health_check_period_s=1,
            graceful_shutdown_wait_loop_s=0.1,
            graceful_shutdown_timeout_s=10,
            ray_actor_options={"num_cpus": self.cluster.cpus, "num_gpus": self.cluster.gpus},
        )(EngineReplica)
        names = [f"replica-{number}" for number in range(self._count, self._count + count)]
        self._count += count
        targets = [
            serve.RunTarget(deployment.bind(name, self.model, self.options), f"{self._front}-{name}", None)
            for name in names
        ]
        try:
            handles = serve.run_many(targets)
        except RuntimeError as error:
            raise ValueError(f"replicas could not be started: {error}") from error
        self._handles |= dict(zip(names, handles, strict=True))
        return names


def _check_address(address: str) -> None:
    """Ray itself tries for minutes. Raises ValueError: no process listens there."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        if not host or "/" in host:
            raise ValueError("it is no HOST:PORT")
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        way_out = f"give HOST:PORT of its head node, or auto ({error})"
        raise wrong("ray_address", "be a Ray cluster's that can be reached", address, way_out) from None


def _connect(cluster: ClusterOptions, most: int) -> bool:
    """Join the cluster, or start one on this machine; whether it was started."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if cluster.address is not None:
        _check_address(cluster.address)
        try:
            ray.init(address=cluster.address, **common)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise wrong("ray_address", "be a Ray cluster's that can be reached", cluster.address, str(error)) from None
    else:
        # Its processes must find this package where it is not installed.
        home = str(Path(folovllm.__file__).parent.parent)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
        ray.init(
            # The cores that are here are shared: on one machine there is no other to look for.
            num_cpus=max(os.cpu_count() or 1, int(most * cluster.cpus + 1)),
            include_dashboard=False,
            object_store_memory=cluster.object_store_mb * 10**6,
            _temp_dir=cluster.temp_dir,
            **common,
        )
    serve.start(proxy_location="Disabled", logging_config={"enable_access_log": False})
    return cluster.address is None
