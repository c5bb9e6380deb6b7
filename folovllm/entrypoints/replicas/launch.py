"""From a command line to a front and its replicas.

vLLM: entrypoints/cli/serve.py (run_multi_api_server)
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.text import Text

from folovllm.entrypoints.openai.launch import ServerOptions, app_for, listen, run_app, warn_if_open
from folovllm.entrypoints.replicas.client import ReplicatedLLM
from folovllm.entrypoints.replicas.cluster import ClusterOptions, RayFleet
from folovllm.entrypoints.replicas.scaling import Scaling
from folovllm.routing import ROUTERS, PrefixAffinity, Router
from folovllm.utils.checks import check_int, wrong


@dataclass
class ReplicaOptions:
    """Args:
    replicas: how many at the start; None is min_replicas.
    min_replicas, max_replicas: bounds; None of both leaves the number as it is.
    router: a name in folovllm.routing.ROUTERS.
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
    listener = listen(options.host, options.port)
    with listener:
        with notes.status(f"starting {replica_options.replicas} replicas of {options.model} …"):
            llm = make_replicas(options.model, engine_options, replica_options)
        try:
            _say_where(notes, options, replica_options, llm, *listener.getsockname()[:2])
            return run_app(app_for(options, llm), listener)
        finally:
            asyncio.run(llm.shutdown())


def _say_where(
    notes: Console, options: ServerOptions, replica_options: ReplicaOptions, llm: ReplicatedLLM, host: str, port: int
) -> None:
    facts, cluster = llm.engine.facts, replica_options.cluster
    scaling = replica_options.scaling()
    count = f"{scaling.least} to {scaling.most}" if scaling else str(replica_options.replicas)
    notes.print(
        Text.assemble(
            ("FoloVLLM ", "bold"),
            "serves ",
            (options.served_model_name or options.model, "bold"),
            " at ",
            (f"http://{f'[{host}]' if ':' in host else host}:{port}", "bold cyan"),
            f" · {count} replicas on {cluster.address or 'this machine'}, {facts.device}, {facts.dtype} · router "
            f"{replica_options.router} · {facts.room.num_blocks:,} KV blocks each, up to {llm.engine.max_model_len:,} "
            "tokens a sequence",
        )
    )
    warn_if_open(notes, options)
