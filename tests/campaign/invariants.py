"""What must hold between two steps of an engine, whatever comes.

Blocks are counted here by hand, from the sequences' own tables. Beside that a shadow of the KV cache (tests/m3) follows
every step that computes, and says so if a sequence reads what is not its own.
"""

from __future__ import annotations

from typing import Any

from folovllm import LLMEngine
from folovllm.core.block_pool import BlockPool
from folovllm.core.scheduler_output import UNKNOWN, SchedulerOutput
from folovllm.engine.stats import EngineStats
from folovllm.outputs import RequestOutput
from folovllm.request import SequenceStatus
from tests.campaign.case import Wrong
from tests.m3.shadow_cache import ShadowCache

GROWING = ("preemptions", "prefix_cache_queries", "prefix_cache_hits", "steps", "prompt_tokens", "output_tokens")


class Watch:
    """Looks at an engine after every step."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self._stats: EngineStats | None = None
        self._last: dict[str, RequestOutput] = {}
        self._ranked: set[str] = set()  # requests with best_of > n: their last output holds the best n, numbered anew
        self._not_its_own: str | None = None  # the first thing that was read and is another's
        if not engine.core.run_ahead:  # which computes tokens that are not known yet
            self._follow(ShadowCache(engine.config.cache_config.block_size))

    def _follow(self, shadow: ShadowCache) -> None:
        runner = self.engine.runner
        execute, speculation = runner.execute_model, runner.speculation

        def look(scheduled: SchedulerOutput, drafts: dict[str, list[int]]) -> None:
            try:
                shadow.execute(scheduled, drafts)
            except AssertionError as error:
                # Not as it is: the engine would take it for a failure of the model.
                self._not_its_own = self._not_its_own or str(error)

        def following(scheduled: SchedulerOutput) -> Any:
            if not scheduled.num_lookahead_tokens:
                look(scheduled, {})
            return execute(scheduled)

        runner.execute_model = following  # type: ignore[method-assign]
        if speculation is not None:
            propose = speculation.propose

            def proposing(scheduled: SchedulerOutput) -> dict[str, list[int]]:
                drafts = propose(scheduled)
                look(scheduled, drafts)
                return drafts

            speculation.propose = proposing  # type: ignore[method-assign]

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
                for block in seq.block_ids if seq.status is status else ():
                    holders[block] += 1
            self._count_pool(name, pool, holders)
        for seq in seqs:
            if seq.block_ids and seq.status not in (SequenceStatus.RUNNING, SequenceStatus.SWAPPED):
                raise Wrong("blocks", f"{seq.seq_id} is {seq.status.name} and holds blocks {seq.block_ids}")
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
        processor = self.engine.output_processor
        ids = {name.rpartition("-")[0] for name in processor.sequences} | set(processor.beams)
        if ids != open_ids:
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
            (0, stats.prefix_cache_hits, stats.prefix_cache_queries),
            (0, stats.running_seqs, self.engine.scheduler.max_num_seqs),
            (0, stats.running, stats.running_seqs),
        )
        if any(not low <= value <= high for low, value, high in limits):
            raise Wrong("stats", f"out of bounds: {stats}")
