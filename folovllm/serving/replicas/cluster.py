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

import logging
import os
import socket
import uuid
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import folovllm
from folovllm.engine.messages import EngineCoreOutputs, EngineCoreRequest
from folovllm.serving.replicas.client import ReplicaDiedError
from folovllm.serving.replicas.options import ReplicaOptions
from folovllm.serving.replicas.replica import EngineReplica
from folovllm.utils.checks import wrong

MANY = 100_000
"""Requests that Serve lets through to a replica at a time: the engine has a queue, and the front a limit."""


class RayFleet:
    """A Fleet of EngineReplicas.

    Raises:
        ValueError: the cluster cannot be reached, has no room for so many, or a replica could not be started.
    """

    def __init__(self, model: str, engine_options: dict[str, Any], options: ReplicaOptions) -> None:
        self.model, self.engine_options, self.options = model, engine_options, options
        self._is_ours = _connect(options)
        self._front = f"folovllm-{uuid.uuid4().hex[:4]}"
        self._handles: dict[str, Any] = {}
        try:
            self._check_room()
            self._handles = self._start()
        except BaseException:
            self.close()
            raise

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._handles)

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

    async def call(self, name: str, method: str, *arguments: Any) -> Any:
        return await getattr(self._handles[name], method).remote(*arguments)

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

    def _check_room(self) -> None:
        """Serve itself would wait for machines without an end."""
        import ray

        for resource, option in (("CPU", "replica_cpus"), ("GPU", "replica_gpus")):
            each, there = getattr(self.options, option), ray.cluster_resources().get(resource, 0)
            if each * self.options.replicas > there:
                must = f"leave room for {self.options.replicas} replicas in a cluster of {there:g} {resource}s"
                raise wrong(option, must, each, "lower it, ask for fewer replicas, or add machines to the cluster")

    def _start(self) -> dict[str, Any]:
        from ray import serve

        deployment = serve.deployment(
            name="engine",
            num_replicas=1,
            max_ongoing_requests=MANY,
            health_check_period_s=1,
            graceful_shutdown_wait_loop_s=0.1,
            graceful_shutdown_timeout_s=10,
            ray_actor_options={"num_cpus": self.options.replica_cpus, "num_gpus": self.options.replica_gpus},
        )(EngineReplica)
        names = self.options.names
        targets = [
            serve.RunTarget(deployment.bind(name, self.model, self.engine_options), f"{self._front}-{name}", None)
            for name in names
        ]
        try:
            return dict(zip(names, serve.run_many(targets), strict=True))
        except RuntimeError as error:
            raise ValueError(f"replicas could not be started: {error}") from error


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


def _connect(options: ReplicaOptions) -> bool:
    """Join the cluster, or start one on this machine; whether it was started."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if (address := options.ray_address) is not None:
        _check_address(address)
        try:
            ray.init(address=address, **common)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise wrong("ray_address", "be a Ray cluster's that can be reached", address, str(error)) from None
    else:
        # Its processes must find this package where it is not installed.
        home = str(Path(folovllm.__file__).parent.parent)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
        ray.init(
            # The cores that are here are shared: on one machine there is no other to look for.
            num_cpus=max(os.cpu_count() or 1, int(options.replicas * options.replica_cpus + 1)),
            include_dashboard=False,
            object_store_memory=200 * 10**6,  # tokens are small
            **common,
        )
    serve.start(proxy_location="Disabled", logging_config={"enable_access_log": False})
    return address is None
