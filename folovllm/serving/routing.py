"""Routers: which of several engines a request goes to, by one of three rules. No engine, no network, no clock.

    RoundRobin       each in its turn
    LeastLoaded      the one with the fewest requests on it
    PrefixAffinity   the one that has this prompt's beginning in its cache, unless it has too much to do

    key of a prompt ─▶ an order of all replicas      B  D  A  C      by sha256(key, replica), the same in every process
                       requests on each              9  3  2  4      margin 4: the least busy has 2, so at most 6
                       the first with few enough        D            B has the prefix, D is where its overflow goes

What overflows goes to the same second replica each time, so that a prefix that all ask for is in two caches and not in
all. When a replica comes or goes, only the keys move that it gets or had (rendezvous hashing: Thaler and Ravishankar,
1998; with a bound on the load: Mirrokni et al., 2018).

vLLM: none
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from hashlib import sha256

from folovllm.core.block_hash import HashChain
from folovllm.request import SequenceData
from folovllm.utils.checks import check_str, wrong

DEPTH = 4
"""Blocks at the beginning of a prompt that make its key, at most: 64 tokens in blocks of 16. Fewer: long common
beginnings are one key and crowd together. More: a chat's second turn may have another key than its first."""
MARGIN = 8
"""Requests that a replica may have more than the least busy one, and still be chosen for its cache."""


class Router(ABC):
    """A rule, and the replicas that it chooses from, by name: they join and leave."""

    def __init__(self) -> None:
        self._replicas: list[str] = []

    @property
    def replicas(self) -> tuple[str, ...]:
        """In the order in which they joined."""
        return tuple(self._replicas)

    def add_replica(self, replica: str) -> None:
        """Raises ValueError: the name is no string, or is there already."""
        check_str("replica", replica)
        if replica in self._replicas:
            raise wrong("replica", "be a new name", replica, f"there are {', '.join(self._replicas)}")
        self._replicas.append(replica)

    def remove_replica(self, replica: str) -> None:
        if replica not in self._replicas:
            raise wrong("replica", f"be one of {', '.join(self._replicas) or 'none'}", replica)
        self._replicas.remove(replica)

    def choose(self, prefix_hashes: Sequence[bytes], loads: Mapping[str, float]) -> str:
        """The replica for a request.

        Args:
            prefix_hashes: of the prompt's first full blocks, each over all before it, as prefix_hashes() makes them.
            loads: unfinished requests of each replica.

        Raises:
            ValueError: there is no replica, or the load of one is not given.
        """
        if not self._replicas:
            raise ValueError("replicas must be at least one when a request comes, got none; add_replica() adds one")
        missing = [replica for replica in self._replicas if replica not in loads]
        if missing:
            raise wrong("loads", f"have a number for each replica, {', '.join(missing)} too", sorted(loads))
        return self._choose(prefix_hashes, loads)

    @abstractmethod
    def _choose(self, prefix_hashes: Sequence[bytes], loads: Mapping[str, float]) -> str:
        """There is a replica, and each has a load."""


class RoundRobin(Router):
    """Each in its turn; prompts and loads do not matter."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0

    def remove_replica(self, replica: str) -> None:
        if replica in self._replicas and self._replicas.index(replica) < self._next:
            self._next -= 1  # those behind it move up, and the turn stays where it was
        super().remove_replica(replica)

    def _choose(self, prefix_hashes: Sequence[bytes], loads: Mapping[str, float]) -> str:
        place = self._next if self._next < len(self._replicas) else 0
        self._next = place + 1
        return self._replicas[place]


class LeastLoaded(Router):
    """The fewest unfinished requests; among equals the one that joined first."""

    def _choose(self, prefix_hashes: Sequence[bytes], loads: Mapping[str, float]) -> str:
        return min(self._replicas, key=loads.__getitem__)


class PrefixAffinity(Router):
    """Where the same beginning went before, as long as that replica has no more than `margin` requests above the least
    busy one; else the next in this beginning's order. A prompt without a full block goes to the least busy."""

    def __init__(self, margin: float = MARGIN) -> None:
        if not margin >= 0:
            raise wrong("margin", "be non-negative", margin)
        super().__init__()
        self.margin = margin

    def _choose(self, prefix_hashes: Sequence[bytes], loads: Mapping[str, float]) -> str:
        if not prefix_hashes:
            return min(self._replicas, key=loads.__getitem__)
        most = min(loads[replica] for replica in self._replicas) + self.margin
        key = prefix_hashes[:DEPTH][-1]
        return min((one for one in self._replicas if loads[one] <= most), key=lambda one: _place(key, one))


def _place(key: bytes, replica: str) -> bytes:
    """A replica's place in a key's order: the smallest is the first."""
    return sha256(key + replica.encode(errors="surrogatepass")).digest()


def prefix_hashes(token_ids: Sequence[int], block_size: int, cache_salt: str | None = None) -> list[bytes]:
    """Of the first full blocks of a prompt, at most DEPTH: the same as the engine's prefix cache has."""
    count = min(DEPTH, len(token_ids) // block_size)
    chain = HashChain(SequenceData(list(token_ids[: count * block_size])), block_size, cache_salt)
    return [chain.block_hash(place) for place in range(count)]


ROUTERS: dict[str, type[Router]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "prefix-affinity": PrefixAffinity,
}
