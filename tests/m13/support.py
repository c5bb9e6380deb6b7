"""Engines and desks with tiers behind the pool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from folovllm import LLMEngine
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.kv_offload import HostBlock, JobResult, OffloadingManager
from folovllm.core.scheduler import Scheduler
from folovllm.kv_cache_groups import KVCacheGroups
from tests.m3.support import EOS
from tests.m6.support import CachingDesk, caching_engine

BLOCK = 4


def tiered_engine(model: Path | str, folder: Path | None, host_blocks: int = 200, **kwargs: Any) -> LLMEngine:
    """host_blocks: that keep full blocks of a tiny model of two layers; folder: behind them."""
    defaults = {"block_size": BLOCK, "max_model_len": 64, "kv_offloading_size": host_blocks * 2048 / 2**30}
    where = {} if folder is None else {"kv_offloading_path": str(folder)}
    return caching_engine(model, **{**defaults, **where, **kwargs})


def forget_pool(engine: LLMEngine) -> None:
    """The pool evicts all it has; the tiers know nothing of it."""
    engine.scheduler.kv.pool.reset_prefix_cache()


def forget_host(engine: LLMEngine) -> None:
    """The engine has nothing any more that is not in a folder."""
    forget_pool(engine)
    assert engine.scheduler.kv.offload is not None
    engine.scheduler.kv.offload.clear()


def flush(engine: LLMEngine) -> None:
    flushed = engine.core.flush()
    assert flushed is not None
    flushed.result()


class SlowTier:
    """A second tier whose jobs end when a test says so. It keeps what the shadow has in a host block."""

    def __init__(self, desk: TieredDesk) -> None:
        self.desk, self.kept, self.jobs = desk, dict[bytes, dict[int, int]](), list[tuple[bytes, HostBlock, bool]]()
        self.refused, self.touched, self.done = set[bytes](), list[bytes](), list[JobResult]()

    def lookup(self, key: bytes) -> bool:
        return key in self.kept

    def submit_store(self, key: bytes, host: HostBlock) -> None:
        self.jobs.append((key, host, False))

    def submit_load(self, key: bytes, host: HostBlock) -> None:
        self.jobs.append((key, host, True))

    def get_finished_jobs(self, *, wait: bool) -> list[JobResult]:
        if wait and not self.done:
            self.work()
        done, self.done = self.done, []
        return done

    def touch(self, keys: Sequence[bytes]) -> None:
        self.touched += keys

    def reset(self) -> None:
        self.work()
        self.kept.clear()

    def work(self, count: int | None = None) -> None:
        """Do the oldest jobs, all of them or so many."""
        for key, host, is_load in self.jobs[:count]:
            shadow, success = self.desk.shadow.swap, True
            if not is_load:
                self.kept[key] = dict(shadow[host.block])
            elif success := key in self.kept and key not in self.refused:
                shadow[host.block] = dict(self.kept[key])
            else:
                self.kept.pop(key, None)
            self.done.append(JobResult(key, host.block, is_load, success))
        self.jobs = self.jobs[len(self.jobs) if count is None else count :]


class TieredDesk(CachingDesk):
    """A CachingDesk with host memory behind its pool, and a tier behind that."""

    def __init__(
        self, num_blocks: int = 40, num_swap_blocks: int = 0, host_blocks: int = 40, *, tier: bool = False, **more: Any
    ) -> None:
        super().__init__(num_blocks, BLOCK, num_swap_blocks, **more)
        self.tier = SlowTier(self) if tier else None
        self.offload = OffloadingManager(num_swap_blocks, host_blocks, self.tier)
        self.kv = KVCacheManager(
            num_blocks, BLOCK, num_swap_blocks, enable_prefix_caching=True, offload=self.offload,
            groups=KVCacheGroups(block_size=BLOCK),
        )  # fmt: skip
        self.scheduler = Scheduler(self.limits, self.kv, frozenset([EOS]))
        self.scheduler.watermark = 0

    def forget_pool(self) -> None:
        self.kv.pool.reset_prefix_cache()
