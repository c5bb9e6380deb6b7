"""Shared by M6's tests: a desk whose scheduler finds blocks again, over a shadow that knows salts and resets."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

from folovllm import LLMEngine
from folovllm.core.block_hash import Digest, digest_sha256
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import Request, Sequence, SequenceStatus
from folovllm.sampling_params import SamplingParams
from tests.m2.support import make_engine
from tests.m3.shadow_cache import Blocks, ShadowCache, _copy, prefix_hashes
from tests.m3.support import EOS
from tests.m5.support import ChunkDesk

RUNNING = SequenceStatus.RUNNING
SCHEDULES: dict[str, dict[str, Any]] = {
    "swap": {"num_kv_blocks": 14, "preemption_mode": "swap"},
    "recompute": {"num_kv_blocks": 14, "preemption_mode": "recompute"},
    "chunks": {"max_num_batched_tokens": 7},
    "ahead": {"async_scheduling": True},
    "no cache": {"enable_prefix_caching": False},
}


def caching_engine(folder: Path | str, **kwargs: Any) -> LLMEngine:
    """A float32 engine without a tokenizer on the CPU, with chunks and a prefix cache unless told otherwise."""
    defaults = {"skip_tokenizer_init": True, "enable_chunked_prefill": True, "enable_prefix_caching": True}
    return make_engine(folder, **{**defaults, **kwargs})


def make_seq(token_ids: list[int], name: str = "r") -> Sequence:
    """A sequence whose prompt these are."""
    return Request(name, None, token_ids, SamplingParams()).get_seqs()[0]


def make_manager(num_blocks: int = 20, num_swap_blocks: int = 0, digest: Digest = digest_sha256) -> KVCacheManager:
    return KVCacheManager(num_blocks, 4, num_swap_blocks, enable_prefix_caching=True, digest=digest)


def compute(kv: KVCacheManager, seq: Sequence, salt: str | None = None, *, upto: int | None = None) -> int:
    """Let `seq` in and compute it, or its first tokens; returns how many of them were there already."""
    cached = take_cached(kv, seq, salt)
    go_on(kv, seq, upto)
    return cached


def take_cached(kv: KVCacheManager, seq: Sequence, salt: str | None = None) -> int:
    """Give `seq` the blocks that hold its first tokens; returns how many tokens that are."""
    request = Request(seq.request_id, None, seq.data.prompt_token_ids, SamplingParams(), cache_salt=salt)
    assert not kv.get_computed_blocks(request, seq)  # it has no siblings
    return seq.num_computed_tokens


def go_on(kv: KVCacheManager, seq: Sequence, upto: int | None = None) -> None:
    num_tokens = (seq.get_len() if upto is None else upto) - seq.num_computed_tokens
    assert kv.allocate_slots([(seq, num_tokens)]) is not None
    seq.num_computed_tokens += num_tokens
    kv.cache_blocks(seq)


def end(kv: KVCacheManager, seq: Sequence) -> None:
    kv.free(seq)
    kv.forget(seq)


class SaltedSeq:
    """A sequence as the shadow sees it: a token under one salt is another than under the next."""

    def __init__(self, seq: Sequence, salt: str | None) -> None:
        self.seq, self.salt = seq, salt

    def __getattr__(self, name: str) -> Any:
        return getattr(self.seq, name)

    def get_token_ids(self) -> list[tuple[str | None, int]]:
        return [(self.salt, token_id) for token_id in self.seq.get_token_ids()]


class SaltedShadow(ShadowCache):
    """And it knows when each slot was written: what was computed before a reset must not be read by who came after."""

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self.num_resets = 0
        self.salts: dict[str, str | None] = {}  # by request
        self.came: dict[str, int] = {}  # after how many resets
        self._ages: Blocks = {}
        self._swapped_ages: Blocks = {}

    def execute(self, output: SchedulerOutput) -> None:
        seqs = [SaltedSeq(seq, self.salts[seq.request_id]) for seq in output.scheduled_seqs]
        super().execute(dataclasses.replace(output, scheduled_seqs=cast("list[Sequence]", seqs)))
        _copy(self._ages, self._swapped_ages, output.blocks_to_swap_out)
        _copy(self._swapped_ages, self._ages, output.blocks_to_swap_in)
        _copy(self._ages, self._ages, output.blocks_to_copy)
        for seq, num_tokens in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True):
            for position in range(seq.num_computed_tokens, seq.num_computed_tokens + num_tokens):
                block, offset = self._slot(seq, position)
                self._ages.setdefault(block, {})[offset] = self.num_resets

    def check(self, seq: Sequence) -> None:
        """What a running sequence counts as computed is there: its own tokens, under its salt, and not too old."""
        hashes = prefix_hashes(cast("Sequence", SaltedSeq(seq, self.salts[seq.request_id])))
        for position in range(seq.num_computed_tokens):
            block, offset = self._slot(seq, position)
            assert self.device[block][offset] == hashes[position], (
                f"{seq.seq_id} names block {block}, which is another's"
            )
            assert self._ages[block][offset] >= self.came[seq.request_id], f"block {block} is from before the reset"


class CachingDesk(ChunkDesk):
    """A ChunkDesk with a prefix cache. digest: of its names."""

    kv: KVCacheManager

    def __init__(
        self,
        num_blocks: int = 40,
        block_size: int = 4,
        num_swap_blocks: int = 0,
        *,
        budget: int = 64,
        digest: Digest = digest_sha256,
        **more: Any,
    ) -> None:
        super().__init__(num_blocks, block_size, num_swap_blocks, budget=budget, **more)
        self.kv = KVCacheManager(num_blocks, block_size, num_swap_blocks, enable_prefix_caching=True, digest=digest)
        self.scheduler = Scheduler(self.limits, self.kv, frozenset([EOS]))
        self.scheduler.watermark = 0
        self.shadow: SaltedShadow = SaltedShadow(block_size)

    def add(self, name: str, prompt: int | list[int] = 4, *, salt: str | None = None, **kwargs: Any) -> Request:
        self.shadow.salts[name], self.shadow.came[name] = salt, self.shadow.num_resets
        request = super().add(name, prompt, **kwargs)
        request.cache_salt = salt  # it is read when the request is let in
        return request

    def update(self, output: SchedulerOutput) -> list[Sequence]:
        gained = super().update(output)
        self.check()
        return gained

    def check(self) -> None:
        """Every running sequence's table, those also that computed nothing."""
        for request in self.scheduler.running:
            for seq in request.get_seqs(RUNNING):
                self.shadow.check(seq)

    def reset(self) -> None:
        self.kv.reset_prefix_cache()
        self.shadow.num_resets += 1
        self.scheduler.check_invariants()

    def cached(self, name: str) -> int | None:
        """Tokens of its prompt that were found."""
        return self.requests[name].num_cached_tokens
