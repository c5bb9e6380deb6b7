"""The start of a server with replicas.

vLLM: entrypoints/cli/serve.py (run_multi_api_server)
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from folovllm.entrypoints.commands import waiting
from folovllm.serving.openai.app import make_app
from folovllm.serving.openai.launch import listen, run_app, say_where
from folovllm.serving.openai.options import ServerOptions
from folovllm.serving.replicas.client import ReplicatedLLM
from folovllm.serving.replicas.cluster import ClusterOptions, RayFleet
from folovllm.serving.replicas.scaling import Scaling
from folovllm.serving.routing import ROUTERS, PrefixAffinity, Router
from folovllm.utils.checks import check_int, wrong


@dataclass
class ReplicaOptions:
    """Args:
    replicas: how many at the start; None is min_replicas.
    min_replicas, max_replicas: bounds; None of both leaves the number as it is.
    router: a name in folovllm.serving.routing.ROUTERS.
    margin: requests that a replica may have above the least busy one and still be chosen for its cache.

    Raises:
        ValueError: a wrong value, by name.
    """

    replicas: int | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    target_ongoing_requests: int = 32
    router: str = "prefix-affinity"
    margin: float | None = None
    cluster: ClusterOptions = field(default_factory=ClusterOptions)

    def __post_init__(self) -> None:
        if (self.min_replicas is None) != (self.max_replicas is None):
            missing = "min_replicas" if self.min_replicas is None else "max_replicas"
            raise wrong(missing, "be given where the other bound is", None)
        if self.router not in ROUTERS:
            raise wrong("router", f"be one of {', '.join(ROUTERS)}", self.router)
        if self.margin is not None and self.router != "prefix-affinity":
            raise wrong("router_margin", "be given with --router prefix-affinity alone", self.margin)
        scaling = self.scaling()
        if self.replicas is None:
            self.replicas = scaling.least if scaling else 1
        check_int("replicas", self.replicas, 1)
        if scaling is not None and not scaling.least <= self.replicas <= scaling.most:
            raise wrong("replicas", f"be in [{scaling.least}, {scaling.most}], its bounds", self.replicas)
        self.make_router()

    def scaling(self) -> Scaling | None:
        if self.min_replicas is None or self.max_replicas is None:
            return None
        return Scaling(self.min_replicas, self.max_replicas, self.target_ongoing_requests)

    def make_router(self) -> Router:
        return ROUTERS[self.router]() if self.margin is None else PrefixAffinity(margin=self.margin)


def make_replicas(model: str, engine_options: dict[str, Any], options: ReplicaOptions) -> ReplicatedLLM:
    """Start them, and wait until all have loaded the model. Raises: as RayFleet."""
    num_replicas = options.replicas or 1
    fleet = RayFleet(model, engine_options, num_replicas, options.max_replicas or num_replicas, options.cluster)
    try:
        facts = asyncio.run(fleet.facts(fleet.names[0]))
        return ReplicatedLLM(fleet, options.make_router(), facts, options.scaling())
    except BaseException:
        fleet.close()
        raise


def serve_replicas(
    options: ServerOptions, engine_options: dict[str, Any], replica_options: ReplicaOptions, notes: Console
) -> int:
    """As openai.launch.serve(), with the engines elsewhere. Raises: also as RayFleet."""
    with listen(options.host, options.port, options.uds) as listener:
        with waiting(f"starting {replica_options.replicas} replicas of {options.model} …", notes):
            llm = make_replicas(options.model, engine_options, replica_options)
        try:
            facts, scaling = llm.engine.facts, replica_options.scaling()
            count = f"{scaling.least} to {scaling.most}" if scaling else str(replica_options.replicas)
            said = [
                f"{count} replicas on {replica_options.cluster.address or 'this machine'}",
                f"{facts.device}, {facts.dtype}",
                f"router {replica_options.router}",
                f"{facts.config.cache_config.num_kv_blocks:,} KV blocks each",
                f"up to {llm.engine.max_model_len:,} tokens a sequence",
            ]
            say_where(notes, options, listener, said)
            return run_app(make_app(llm, options), listener)
        finally:
            asyncio.run(llm.shutdown())
