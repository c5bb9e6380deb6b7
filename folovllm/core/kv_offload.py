"""Host memory behind the block pool, and what is behind that: full blocks are kept there under their hash.

    a block is full    pool    hash ─▶ block 7      (7, 31) goes out with the next step
                       host    hash ─▶ block 31     and from there to a second tier, if there is one (a folder)
    a prompt comes     folder  hash, not in host    read into host block 32 by a thread; its request waits meanwhile
    it is let in       host    hash, not in pool    (31, 4) comes in before the step, and 4 is cached in the pool

A block is stored when it becomes full and not when it is evicted: eviction costs nothing then, and what a killed engine
has computed is there. A block that comes in is in the pool's books at once, so it is a prefix hit like any other. The
copies are pairs in blocks_to_swap_out and blocks_to_swap_in, so the worker has nothing to learn. Host blocks lie behind
those of the swap space. Only what was read and checked counts as found, so that a load cannot fail.

vLLM: v1/kv_offload/cpu/manager.py, v1/kv_offload/tiering/manager.py
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from folovllm.core.block_pool import BlockPool
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import Request


class HostBlock(NamedTuple):
    block: int
    parent: bytes  # hash of the block before it; b"": it is the first
    token_ids: tuple[int, ...]


class JobResult(NamedTuple):
    key: bytes
    block: int
    is_load: bool
    success: bool


class SecondaryTier(Protocol):
    """What keeps blocks behind host memory. Its jobs end in threads of its own; a host block is the job's until then.

    vLLM: v1/kv_offload/tiering/base.py (SecondaryTierManager)
    """

    def lookup(self, key: bytes) -> bool: ...  # whether a load may find it
    def submit_store(self, key: bytes, host: HostBlock) -> None: ...
    def submit_load(self, key: bytes, host: HostBlock) -> None: ...
    def get_finished_jobs(self, *, wait: bool) -> Iterable[JobResult]: ...  # wait: for one, for a short while
    def touch(self, keys: Sequence[bytes]) -> None: ...  # these, of one prompt, are asked for again
    def flush(self) -> Future[None]: ...  # done when all that was to be stored by now is there
    def reset(self) -> None: ...


class OffloadingManager:
    """Which block has which place in host memory, and which moves the next step has to make for that.

    Args:
        first, num_blocks: the host blocks first + 1 .. first + num_blocks are its own.
        secondary: a tier behind it; None: none.
    """

    def __init__(self, first: int, num_blocks: int, secondary: SecondaryTier | None = None) -> None:
        self.blocks, self.secondary = range(first + 1, first + num_blocks + 1), secondary
        self.num_queries = self.num_hits = 0  # blocks that were looked for behind host memory, and came from there
        self.jobs: set[int] = set()  # host blocks that the second tier reads or writes
        self.clear()

    def clear(self) -> None:
        """Nothing is found any more, but for what the second tier has."""
        self.known: OrderedDict[bytes, HostBlock] = OrderedDict()  # the one used last is last
        self._loading: dict[bytes, HostBlock] = {}  # from the second tier
        self._waiting: dict[Request, set[bytes]] = {}  # for such blocks
        self.stores: dict[int, tuple[int, bytes]] = {}  # host block: of the pool's block, with this hash
        self.loads: dict[int, tuple[int, bytes]] = {}  # the pool's block: from the host block, with this hash
        self.sources: set[int] = set()  # host blocks that these loads read
        self.moving: dict[int, bytes] = {}  # host blocks that are written by a step that is not over
        self.free = [block for block in reversed(self.blocks) if block not in self.jobs]

    def reset_prefix_cache(self) -> None:
        """Nothing is found any more, in no tier."""
        self.clear()
        if self.secondary is not None:
            self.secondary.reset()

    def store(self, block_hash: bytes, parent: bytes, token_ids: tuple[int, ...], block_id: int) -> None:
        """This block of the pool is full: a copy is made before the next step, if there is none, and room for it."""
        if block_hash in self.known:
            self.known.move_to_end(block_hash)
        elif (host := self._take_free()) is not None:
            self.known[block_hash] = HostBlock(host, parent, token_ids)
            self.stores[host] = block_id, block_hash

    def _take_free(self, keep: Container[bytes] = ()) -> int | None:
        """A free host block, else that of the block whose last use is longest ago; None: that is one to keep. Passed
        over are those that a load of the next step reads (stores go before loads, and would write over it), that a
        step writes, or that the second tier is at work on."""
        if self.free:
            return self.free.pop()
        busy = (self.sources, self.moving, self.jobs)
        unused = (key for key, host in self.known.items() if not any(host.block in each for each in busy))
        oldest = next(unused, None)
        if oldest is None or oldest in keep:
            return None
        block = self.known.pop(oldest).block
        self.stores.pop(block, None)
        return block

    def find(self, block_hash: bytes, parent: bytes, token_ids: Sequence[int]) -> HostBlock | None:
        """As the pool does, it believes a hash only if parent and tokens are the ones that are wanted."""
        host = self.known.get(block_hash)
        return host if host is not None and host[1:] == (parent, tuple(token_ids)) else None

    def load(self, block_hash: bytes, block_id: int) -> None:
        """Copy what has been found into this block of the pool before the next step."""
        host = self.known[block_hash].block
        self.loads[block_id] = host, block_hash
        self.sources.add(host)

    def add_moves(self, output: SchedulerOutput, pool: BlockPool) -> None:
        """The next step makes these copies. A block may have been handed out again since a load was noted for it, when
        its request was not let in after all: that load would write over another sequence's keys, and is dropped."""
        output.blocks_to_swap_out += [(block_id, host) for host, (block_id, _) in self.stores.items()]
        output.blocks_to_swap_in += [
            (host, block_id) for block_id, (host, key) in self.loads.items() if pool.hash_of(block_id) == key
        ]
        if self.secondary is not None:
            self.moving |= {host: key for host, (_, key) in self.stores.items()}
        self.stores, self.loads, self.sources = {}, {}, set()

    @property
    def has_stores(self) -> bool:
        return bool(self.stores)

    def moved(self, output: SchedulerOutput) -> None:
        """That step is over: what it has copied may go on to the second tier. The last one first, so that of one prompt
        the beginning is the youngest there."""
        for _, block in reversed(output.blocks_to_swap_out):
            if self.secondary is not None and (key := self.moving.pop(block, None)) is not None:
                self.jobs.add(block)
                self.secondary.submit_store(key, self.known[key])

    def prefetch(self, request: Request, found: dict[bytes, HostBlock | None]) -> None:
        """These blocks of a prompt are in some tier; HostBlock, whose number means nothing yet: in the second one
        alone, which reads them. The request waits until they are there."""
        assert self.secondary is not None
        self.secondary.touch([*found])
        for key in found.keys() & self.known.keys():
            self.known.move_to_end(key)
        for key, wanted in found.items():
            if wanted is None:
                continue
            if key not in self._loading:
                if (block := self._take_free(keep=found)) is None:
                    break
                self._loading[key] = wanted._replace(block=block)
                self.jobs.add(block)
                self.secondary.submit_load(key, self._loading[key])
            self._waiting.setdefault(request, set()).add(key)

    def is_waiting(self, request: Request) -> bool:
        """Whether blocks of its prompt are being read."""
        return request in self._waiting

    def poll(self, *, wait: bool = False) -> None:
        """Take in what the second tier has done since. wait: there is nothing to do until it has done something."""
        if self.secondary is None:
            return
        for job in self.secondary.get_finished_jobs(wait=wait and bool(self._waiting)):
            key, block = job.key, job.block
            self.jobs.discard(block)
            if job.is_load and (host := self._loading.get(key)) is not None and host.block == block:
                del self._loading[key]
                self._waiting = {each: keys - {key} for each, keys in self._waiting.items() if keys != {key}}
                if job.success and key not in self.known:
                    self.known[key] = host
                    self.num_hits += 1
            if key not in self.known or self.known[key].block != block:
                self.free.append(block)

    def check_invariants(self) -> None:
        """Each host block is free, or known under one hash, or a job's."""
        known = [host.block for host in self.known.values()]
        kept = [*self.free, *known, *(self.jobs - {*known})]
        if sorted(kept) != list(self.blocks):
            raise RuntimeError(f"host blocks {sorted(kept)} must be {self.blocks}, each once")


@dataclass
class PromotingPool:
    """The pool, and host memory where it lacks a block: what is there gets a free block and is cached. What has been
    found is held until release(), or the next block would take the place of an earlier one."""

    pool: BlockPool
    offload: OffloadingManager
    held: list[int] = field(default_factory=list)
    promoted: set[int] = field(default_factory=set)

    def get_cached_block(
        self, block_hash: bytes, parent: int, token_ids: Sequence[int], cache_salt: str | None
    ) -> int | None:
        pool = self.pool
        found = pool.get_cached_block(block_hash, parent, token_ids, cache_salt)
        if found is not None:
            pool.touch([found])
        elif pool.num_free and self.offload.find(block_hash, pool.hash_of(parent), token_ids) is not None:
            (found,) = pool.get_new_blocks(1, after=parent)
            if not pool.cache_block(found, block_hash, parent, token_ids, cache_salt):
                pool.free_blocks([found])
                return None
            self.offload.load(block_hash, found)
            self.promoted.add(found)
        if found is not None:
            self.held.append(found)
        return found

    def release(self) -> None:
        self.pool.free_blocks(reversed(self.held))  # no child stays longer than its parent


@dataclass
class AllTiers:
    """Looks where a prompt's blocks are, and changes nothing: `found` has them as prefetch() takes them. A block is
    called by its place in `_names`, which begin at 1."""

    pool: BlockPool
    offload: OffloadingManager
    found: dict[bytes, HostBlock | None] = field(default_factory=dict)
    _names: list[bytes] = field(default_factory=lambda: [b""])

    def get_cached_block(
        self, block_hash: bytes, parent: int, token_ids: Sequence[int], cache_salt: str | None
    ) -> int | None:
        before = self._names[parent]
        is_near = self.pool.has(block_hash) or self.offload.find(block_hash, before, token_ids) is not None
        if not is_near:
            assert self.offload.secondary is not None
            self.offload.num_queries += 1
            if not self.offload.secondary.lookup(block_hash):
                return None
        self.found[block_hash] = None if is_near else HostBlock(0, before, tuple(token_ids))
        self._names.append(block_hash)
        return len(self._names) - 1
