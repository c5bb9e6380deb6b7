"""ReplicaOptions: how many engines, where they run, and which of them gets a request. Each field is an option of
`folovllm serve`, and its line below is what the help says of it.

vLLM: none
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from folovllm.config import check_types
from folovllm.serving.routing import ROUTERS, PrefixAffinity, Router
from folovllm.utils.checks import wrong

PREFILL = "prefill-"
"""What the names of replicas begin with that only compute prompts."""


@dataclass
class ReplicaOptions:
    """Several engines, on Ray.

    replicas: each in a process of its own; needs the extra ray (default: one, without Ray)
    router: which replica gets a request
    router_margin: requests that a replica may have above the least busy, and still be chosen for its cache (default: 8)
    ray_address: of a Ray cluster (default: one on this machine)
    prefill_replicas: of these, those that only compute long prompts, for the others to find in --kv-offloading-path
    replica_cpus: CPUs that each takes
    replica_gpus: GPUs that each takes

    Raises:
        ValueError: a wrong value, by name.
    """

    replicas: int = 1
    router: Literal["prefix-affinity", "least-loaded", "round-robin"] = "prefix-affinity"
    router_margin: float | None = None
    ray_address: str | None = None
    prefill_replicas: int = 0
    replica_cpus: float = 1.0
    replica_gpus: float = 0.0

    def __post_init__(self) -> None:
        check_types(self, prefill_replicas=0)
        if self.router_margin is not None and self.router != "prefix-affinity":
            raise wrong("router_margin", "be given with --router prefix-affinity alone", self.router_margin)
        if self.prefill_replicas >= max(self.replicas, 1):
            must = f"be less than the {self.replicas} replicas"
            raise wrong("prefill_replicas", must, self.prefill_replicas, "one must be left to generate tokens")
        self.make_router()

    @property
    def names(self) -> list[str]:
        """Of the replicas."""
        count = self.prefill_replicas
        others = [f"replica-{number}" for number in range(self.replicas - count)]
        return [f"{PREFILL}{number}" for number in range(count)] + others

    def make_prefill_router(self) -> Router | None:
        return PrefixAffinity() if self.prefill_replicas else None

    def make_router(self) -> Router:
        if self.router_margin is not None:
            return PrefixAffinity(self.router_margin)
        return ROUTERS[self.router]()
