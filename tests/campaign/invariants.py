"""What must hold between two steps of an engine, whatever comes.

Blocks are counted here by hand, from the sequences' own tables. Beside that a shadow of the KV cache (tests/m3) follows
every step that computes, and says so if a sequence reads what is not its own.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any

from folovllm import LLMEngine
from folovllm.core.block_pool import BlockPool
from folovllm.core.kv_offload import HostBlock, JobResult, SecondaryTier
from folovllm.core.scheduler_output import UNKNOWN, SchedulerOutput
from folovllm.engine.stats import EngineStats
from folovllm.outputs import RequestOutput
from folovllm.request import SequenceStatus
from tests.campaign.case import Wrong
from tests.m3.shadow_cache import ShadowCache, _copy, prefix_hashes

GROWING = (
    "preemptions", "prefix_cache_queries", "prefix_cache_hits", "steps", "prompt_tokens", "output_tokens",
    "external_prefix_cache_hits", "kv_offload_tiering_chunk_queries", "kv_offload_tiering_chunk_hits",
)  # fmt: skip


class GroupShadow(ShadowCache):
    """Of a cache with groups of layers: a slot holds for which group and tokens it was written. windows: of each. tier:
    the host blocks that keep full blocks."""

    def __init__(self, block_size: int, windows: tuple[int | None, ...], tier: Container[int]) -> None:
        super().__init__(block_size)
        self.windows, self.tier = windows, tier
        self._came_in: set[int] = set()

    def move(self, output: SchedulerOutput) -> None:
        self._came_in = {block for host, block in output.blocks_to_swap_in if host in self.tier}
        _copy(self.device, self.swap, output.blocks_to_swap_out)
        _copy(self.swap, self.device, output.blocks_to_swap_in)
        _copy(self.device, self.device, output.blocks_to_copy)

    def execute(self, output: SchedulerOutput, behind: Mapping[str, list[int]] = MappingProxyType({})) -> None:
        """The blocks of this step have been moved."""
        written: set[tuple[int, int]] = set()
        rows = []  # of sequences and groups: where queries begin, the first key that they see, hashes of all keys
        for seq, num_tokens in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True):
            drafts, start = behind.get(seq.seq_id, []), seq.num_computed_tokens
            hashes = prefix_hashes(seq, drafts)[: start + num_tokens + len(drafts)]
            for group, (table, window) in enumerate(zip(seq.tables, self.windows, strict=True)):
                first = 0 if window is None else max(0, start - window + 1)
                rows.append((seq.seq_id, table, start, first, [hash((group, each)) for each in hashes]))
        for _, table, start, _, hashes in rows:
            for position in range(start, len(hashes)):
                slot = self._place(table, position)
                assert slot not in written, f"two sequences write to block and offset {slot}"
                assert slot[0] not in self._came_in, f"block {slot[0]} is full, and another's"
                written.add(slot)
                self.device.setdefault(slot[0], {})[slot[1]] = hashes[position]
        for name, table, _, first, hashes in rows:
            for position in range(first, len(hashes)):
                block, offset = self._place(table, position)
                assert self.device.get(block, {}).get(offset) == hashes[position], (
                    f"{name} reads what is not its token {position} in block {block}, offset {offset}"
                )

    def _place(self, table: list[int], position: int) -> tuple[int, int]:
        block = table[position // self.block_size]
        assert block != 0, "the null block is nobody's"
        return block, position % self.block_size


class Watch:
    """Looks at an engine after every step. files: what the shadows of all engines of a folder have stored there."""

    def __init__(self, engine: LLMEngine, files: dict[bytes, dict[int, int]]) -> None:
        self.engine, self._files = engine, files
        self._stats: EngineStats | None = None
        self._last: dict[str, RequestOutput] = {}
        self._ranked: set[str] = set()  # requests with best_of > n: their last output holds the best n, numbered anew
        self._not_its_own: str | None = None  # the first thing that was read and is another's
        if not engine.core.run_ahead:  # which computes tokens that are not known yet
            kv = engine.scheduler.kv
            tier = () if kv.offload is None else kv.offload.blocks
            self._follow(GroupShadow(kv.block_size, kv.groups.windows, tier))

    def _follow(self, shadow: GroupShadow) -> None:
        runner, offload = self.engine.runner, self.engine.scheduler.kv.offload
        execute, move, speculation = runner.execute_model, runner.move_blocks, runner.speculation

        def look(scheduled: SchedulerOutput, drafts: dict[str, list[int]]) -> None:
            try:
                shadow.execute(scheduled, drafts)
            except AssertionError as error:
                # Not as it is: the engine would take it for a failure of the model.
                self._not_its_own = self._not_its_own or str(error)

        def moving(scheduled: SchedulerOutput) -> None:
            shadow.move(scheduled)
            move(scheduled)

        def following(scheduled: SchedulerOutput) -> Any:
            pending = execute(scheduled)
            if not scheduled.num_lookahead_tokens:
                look(scheduled, {})
            return pending

        runner.execute_model, runner.move_blocks = following, moving  # type: ignore[method-assign]
        if offload is not None and offload.secondary is not None:
            self._follow_tier(shadow, offload.secondary)
        if speculation is not None:
            propose = speculation.propose

            def proposing(scheduled: SchedulerOutput) -> dict[str, list[int]]:
                drafts = propose(scheduled)
                look(scheduled, drafts)
                return drafts

            speculation.propose = proposing  # type: ignore[method-assign]

    def _follow_tier(self, shadow: GroupShadow, tier: SecondaryTier) -> None:
        store, get_finished = tier.submit_store, tier.get_finished_jobs

        def storing(key: bytes, host: HostBlock) -> None:
            self._files[key] = dict(shadow.swap[host.block])
            store(key, host)

        def finished(*, wait: bool) -> list[JobResult]:
            jobs = list(get_finished(wait=wait))
            for job in jobs:
                if job.is_load and job.success:
                    shadow.swap[job.block] = dict(self._files[job.key])
            return jobs

        tier.submit_store, tier.get_finished_jobs = storing, finished  # type: ignore[method-assign]

    def look(self, open_ids: set[str], outputs: list[RequestOutput]) -> None:
        """open_ids: the requests that have come and have not ended."""
        if self._not_its_own:
            raise Wrong("cache", self._not_its_own)
        for request_id, request in self.engine.requests.items():
            if request.sampling_params.best_of > request.sampling_params.n:
                self._ranked.add(request_id)
        self._count_blocks()
        try:
            self.engine.scheduler.check_invariants()
        except RuntimeError as error:
            raise Wrong("books", str(error)) from error
        self._find(open_ids)
        for output in outputs:
            self._compare(output)
        self._sanity()

    def _count_blocks(self) -> None:
        """Free and used are all, and each block is used by as many as its count says."""
        kv = self.engine.scheduler.kv
        seqs = [seq for request in self.engine.requests.values() for seq in request.get_seqs()]
        for name, pool, status in (
            ("device", kv.pool, SequenceStatus.RUNNING),
            ("swap", kv.swap_pool, SequenceStatus.SWAPPED),
        ):
            holders = [0] * (pool.num_blocks + 1)
            for seq in seqs:
                for block in filter(None, chain(*seq.tables)) if seq.status is status else ():
                    holders[block] += 1
            self._count_pool(name, pool, holders)
        for seq in seqs:
            if any(seq.tables) and seq.status not in (SequenceStatus.RUNNING, SequenceStatus.SWAPPED):
                raise Wrong("blocks", f"{seq.seq_id} is {seq.status.name} and holds blocks {seq.tables}")
            if UNKNOWN in seq.data.output_token_ids[:-1]:
                raise Wrong("tokens", f"{seq.seq_id} has a token that is not known: {seq.data.output_token_ids}")

    def _count_pool(self, name: str, pool: BlockPool, holders: list[int]) -> None:
        free, used = set(pool.get_all_free_blocks()), {block for block, count in enumerate(holders) if count}
        if 0 in used or free & used or free | used != set(range(1, pool.num_blocks + 1)):
            lost = set(range(1, pool.num_blocks + 1)) - free - used
            raise Wrong("blocks", f"{name}: {sorted(free & used)} are free and used, {sorted(lost)} are lost")
        wrong = [block for block, count in enumerate(holders) if count != pool.refs(block)]
        if wrong:
            raise Wrong("blocks", f"{name}: references of {wrong} are not the tables that name them")

    def _find(self, open_ids: set[str]) -> None:
        """Each open request is known, and nothing of any other is left."""
        if (known := set(self.engine.requests)) != open_ids:
            raise Wrong("requests", f"lost: {sorted(open_ids - known)}, left behind: {sorted(known - open_ids)}")
        ids = {*self.engine.output_processor.request_states, *self.engine.core.beams}
        if not ids <= open_ids:
            raise Wrong("requests", f"outputs are kept for {sorted(ids)}, open are {sorted(open_ids)}")

    def _compare(self, output: RequestOutput) -> None:
        """What has been said is not taken back."""
        before, self._last[output.request_id] = self._last.get(output.request_id), output
        if before is None or len(before.outputs) > len(output.outputs):
            return
        if output.finished and output.request_id in self._ranked:
            return
        order = [c.index for c in output.outputs]
        if order != list(range(len(order))):
            raise Wrong("outputs", f"{output.request_id} has the indices {order}")
        for old, new in zip(before.outputs, output.outputs, strict=False):  # completions begin one after another
            if new.token_ids[: len(old.token_ids)] != old.token_ids or not new.text.startswith(old.text):
                raise Wrong("outputs", f"{output.request_id} takes back {old.text!r} {old.token_ids}")

    def _sanity(self) -> None:
        stats, before = self.engine.stats(), self._stats
        self._stats = stats
        for name in GROWING if before is not None else ():
            if getattr(stats, name) < getattr(before, name):
                raise Wrong("stats", f"{name} went down from {getattr(before, name)} to {getattr(stats, name)}")
        limits = (
            (0, stats.kv_blocks_used, stats.kv_blocks_total),
            (0, stats.kv_blocks_cached, stats.kv_blocks_total),
            (stats.external_prefix_cache_hits, stats.prefix_cache_hits, stats.prefix_cache_queries),
            (0, stats.kv_offload_tiering_chunk_hits, stats.kv_offload_tiering_chunk_queries),
            (0, stats.running_seqs, self.engine.scheduler.max_num_seqs),
            (0, stats.running, stats.running_seqs),
        )
        if any(not low <= value <= high for low, value, high in limits):
            raise Wrong("stats", f"out of bounds: {stats}")
