"""Shared by the tests of hybrid caches: a desk whose sequences have a block table for each group of layers, over a
shadow that knows which keys each group's queries read."""

from __future__ import annotations

from typing import Any, cast

from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.kv_cache_groups import KVCacheGroups
from folovllm.request import Sequence, SequenceStatus
from tests.m3.shadow_cache import _copy, prefix_hashes
from tests.m3.support import EOS
from tests.m6.support import CachingDesk, SaltedSeq, SaltedShadow


class HybridShadow(SaltedShadow):
    """A slot holds for which group, tokens and salt it was written, and after how many resets."""

    def __init__(self, block_size: int, windows: tuple[int | None, ...]) -> None:
        super().__init__(block_size)
        self.windows = windows

    def execute(self, output: SchedulerOutput) -> None:
        _copy(self.device, self.swap, output.blocks_to_swap_out)
        _copy(self.swap, self.device, output.blocks_to_swap_in)
        _copy(self.device, self.device, output.blocks_to_copy)
        rows = [*zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True)]
        written: set[tuple[int, int]] = set()
        for seq, num_tokens in rows:
            hashes = self._hashes(seq)
            for position in range(seq.num_computed_tokens, seq.num_computed_tokens + num_tokens):
                for group, table in enumerate(seq.tables):
                    slot = self._place(table, position)
                    assert slot not in written, f"two sequences write to block and offset {slot}"
                    written.add(slot)
                    self.device.setdefault(slot[0], {})[slot[1]] = (group, hashes[position], self.num_resets)
        for seq, num_tokens in rows:
            self._read(seq, seq.num_computed_tokens, seq.num_computed_tokens + num_tokens)

    def check(self, seq: Sequence) -> None:
        """What the next query of a running sequence reads is there: its own, and not too old."""
        self._read(seq, seq.num_computed_tokens, seq.num_computed_tokens)

    def _read(self, seq: Sequence, start: int, end: int) -> None:
        """What queries from position `start` on read, of `end` keys."""
        hashes = self._hashes(seq)
        for group, (window, table) in enumerate(zip(self.windows, seq.tables, strict=True)):
            for position in range(0 if window is None else max(0, start - window + 1), end):
                block, offset = self._place(table, position)
                found = self.device.get(block, {}).get(offset)
                assert found, f"{seq.seq_id}: nothing was written to block {block}, offset {offset}"
                assert found[:2] == (group, hashes[position]), f"{seq.seq_id} reads what is not its token {position}"
                assert found[2] >= self.came[seq.request_id], f"block {block} is from before the reset"

    def _hashes(self, seq: Sequence) -> list[int]:
        return prefix_hashes(cast("Sequence", SaltedSeq(seq, self.salts[seq.request_id])))

    def _place(self, table: list[int], position: int) -> tuple[int, int]:
        block = table[position // self.block_size]
        assert block != 0, "the null block is nobody's"
        return block, position % self.block_size


class HybridDesk(CachingDesk):
    """A CachingDesk with groups of layers. windows: of each group, the widest first."""

    def __init__(
        self, num_blocks: int = 40, block_size: int = 4, num_swap_blocks: int = 0, *,
        windows: tuple[int | None, ...] = (None, 6), budget: int = 16, max_model_len: int = 64, **more: Any,
    ) -> None:  # fmt: skip
        chunk = min(budget, more.get("threshold", 0) or budget)
        self.groups = KVCacheGroups(windows, (), block_size, chunk)
        longest = self.groups.longest(num_blocks, max_model_len)
        super().__init__(num_blocks, block_size, num_swap_blocks, budget=budget, max_model_len=longest, **more)
        self.limits.max_model_len = longest
        self.config.set_max_model_len(longest)
        self.config.kv_cache_groups = self.groups
        digest = self.kv._digest
        self.kv = KVCacheManager(
            num_blocks, block_size, num_swap_blocks, enable_prefix_caching=True, digest=digest, groups=self.groups
        )
        self.scheduler = Scheduler(self.limits, self.kv, frozenset([EOS]))
        self.shadow = HybridShadow(block_size, windows)

    def schedule(self) -> SchedulerOutput:
        output = super().schedule()
        for request in self.scheduler.running:
            for seq in request.get_seqs(SequenceStatus.RUNNING):
                self.check_held(seq)
        return output

    def check_held(self, seq: Sequence) -> None:
        """A window group holds what its window and a chunk touch, and no more."""
        for window, table in zip(self.groups.windows, seq.tables, strict=True):
            if window is not None:
                most = -(-(window + self.groups.chunk) // self.groups.block_size) + 1
                assert sum(map(bool, table)) <= most, f"{seq.seq_id} holds {table}, at most {most} are needed"
