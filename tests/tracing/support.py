"""A scheduler without a model that writes traces, as a simulator does: the tokens are made up, and so are the times."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from folovllm.config import SchedulerConfig
from folovllm.core.group_tables import get_block_ids
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.core.step_record import StepRecord
from folovllm.kv_cache_groups import KVCacheGroups
from folovllm.request import Request, Sequence, SequenceStatus
from folovllm.sampling_params import SamplingParams
from folovllm.tracing.attach import Tracer, make_header
from folovllm.tracing.reader import rows_of
from folovllm.tracing.records import Step
from folovllm.tracing.writer import TraceWriter

BLOCK_SIZE = 16


class Simulated:
    """Requests through the real scheduler. A step takes `step_seconds`; every token drawn is 7."""

    def __init__(
        self, path: Path, *, num_blocks: int = 64, max_num_seqs: int = 8, budget: int = 64,
        windows: tuple[int | None, ...] = (None,),
    ) -> None:  # fmt: skip
        config = SchedulerConfig(
            max_num_batched_tokens=budget,
            max_num_seqs=max_num_seqs,
            max_model_len=4096,
            enable_chunked_prefill=True,
            long_prefill_token_threshold=0,
        )
        kv = KVCacheManager(
            num_blocks, BLOCK_SIZE, num_blocks, enable_prefix_caching=True,
            groups=KVCacheGroups(windows, (), BLOCK_SIZE, budget),
        )  # fmt: skip
        self.scheduler = Scheduler(config, kv, frozenset())
        self.now, self.step_seconds = 0.0, 0.01
        facts = {"model": "none", "device": "none", "dtype": "none", "preemption_mode": "auto", "clock": "simulated"}
        header = make_header(self.scheduler, **facts)
        self.tracer = Tracer(TraceWriter(path), header, self.scheduler)
        self.scheduler.record, self.scheduler.kv.pool.events = StepRecord(), []
        self.requests: dict[str, Request] = {}

    def add(self, request_id: str, prompt: list[int], max_tokens: int, **params: object) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, **params)  # type: ignore[arg-type]
        request = Request(request_id, None, prompt, sampling, arrival_time=self.now)
        self.requests[request_id] = request
        self.scheduler.add_request(request)

    def step(self) -> None:
        record = self.scheduler.record
        output = self.scheduler.schedule()
        record.times = [self.now] * 3  # it takes no time to schedule and to launch
        self.now += self.step_seconds
        tokens = [7 if seq.num_computed_tokens + n >= seq.get_len() else None
                  for seq, n in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True)]  # fmt: skip
        tokens += [7] * len(output.forks)
        gained = self.scheduler.update_from_output(output, tokens)
        for seq, ended in gained:
            if ended is not None:
                self.scheduler.finish(self.requests[seq.request_id], seq, ended)
        record.token_ids = tokens
        record.ended = [(seq, ended) for seq, ended in gained if ended is not None]
        record.times += [self.now] * 3
        self.tracer(record)

    def run(self) -> None:
        while self.scheduler.has_unfinished_requests():
            self.step()
        self.close()

    def close(self) -> None:
        self.tracer.close(self.now)


class Books:
    """A scheduler's own books at each step, next to which a trace is laid."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.steps: list[dict[str, Any]] = []
        schedule, pool = scheduler.schedule, scheduler.kv.pool

        def seqs(requests: Iterable[Request], status: SequenceStatus) -> list[Sequence]:
            return [seq for request in requests for seq in request.get_seqs(status)]

        def look() -> SchedulerOutput:
            output = schedule()
            running = seqs(scheduler.running, SequenceStatus.RUNNING)
            self.steps.append({
                "tables": {seq.seq_id: list(get_block_ids(seq)) for seq in running if seq.block_ids},
                "swapped": {seq.seq_id for seq in seqs(scheduler.swapped, SequenceStatus.SWAPPED)},
                "starts": {seq.seq_id: seq.num_computed_tokens for seq in output.scheduled_seqs},
                "nums": dict(zip([s.seq_id for s in output.scheduled_seqs], output.num_scheduled_tokens, strict=True)),
                "findable": set(getattr(pool, "_cached", ())),
                "free": pool.num_free,
                "copies": list(output.blocks_to_copy),
                "output": output,
            })  # fmt: skip
            return output

        scheduler.schedule = look  # type: ignore[method-assign]


def check_step(
    record: Step, tables: dict[str, list[int]], findable: set[int], books: dict[str, Any], num_blocks: int
) -> None:
    """A record and what blocks_of() gives with it have the tables, the rows and the blocks that the books have."""
    assert tables == books["tables"]
    assert findable == books["findable"]
    assert num_blocks - len({block for table in tables.values() for block in table}) == record.free == books["free"]
    assert [tuple(pair) for pair in record.copies] == books["copies"]
    computing = [row for row in rows_of(record) if row.kind != "fork"]
    assert {row.seq_id: row.start for row in computing} == books["starts"]
    accepted = {row.seq_id: len(record.later.get(row.seq_id, ())) for row in computing}
    assert {row.seq_id: row.num_tokens - accepted[row.seq_id] for row in computing} == books["nums"]
