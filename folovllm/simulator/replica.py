"""One simulated engine: the real scheduler, the real cache, and simulated time.

    arrivals ─▶ add()    advance(t)   schedule() ─▶ StepShape ─▶ cost model ─▶ the step ends so many seconds later
                                      update_from_output(), finish(): all but the tokens is as in EngineCore.step

A token that is drawn is 0, and a request ends by its length.

vLLM: none
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from folovllm.bench.metrics import RequestTimes
from folovllm.config import SchedulerConfig
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.core.step_record import Listener, StepRecord
from folovllm.request import Request
from folovllm.simulator.cost_model import CostModel, StepShape
from folovllm.simulator.load import Job
from folovllm.simulator.prompts import NamedBlocks, make_request

TOKEN_ID = 0


@dataclass(frozen=True)
class Setup:
    """An engine's settings. `config`: with its budget and max_model_len filled in."""

    config: SchedulerConfig
    num_blocks: int
    block_size: int = 16
    enable_prefix_caching: bool = True


class Live(NamedTuple):
    """What is remembered of a request until it ends."""

    request: Request
    arrival: float
    times: RequestTimes


class Replica:
    """Attributes:
    now: seconds at which its newest step began or ended, or a request came.
    steps, rows, busy: the steps so far, the sequences in all of them, and their seconds.
    """

    def __init__(self, setup: Setup, cost: CostModel) -> None:
        self.setup, self.cost = setup, cost
        sizes, caching = (setup.num_blocks, setup.block_size), setup.enable_prefix_caching
        kv = KVCacheManager(*sizes, enable_prefix_caching=caching)
        self.scheduler = Scheduler(setup.config, kv, frozenset())
        self.live: dict[str, Live] = {}
        self.now = self.busy = self._end = 0.0
        self.steps = self.rows = 0
        self._output: SchedulerOutput | None = None
        self._listener: Listener | None = None
        self._record: StepRecord | None = None

    def listen(self, listener: Listener) -> None:
        """It gets the records of the steps to come."""
        self._listener, self.scheduler.record, self.scheduler.kv.pool.events = listener, StepRecord(), []

    def add(self, number: int, job: Job) -> RequestTimes:
        """The request's times, which are complete once it has ended; refused if it can never be served, as by the
        engine's own check of a request."""
        longest = self.setup.config.max_model_len
        if job.prompt_tokens >= longest:
            return RequestTimes(problem=f"{job.prompt_tokens} prompt tokens do not fit into {longest}")
        self.now = max(self.now, job.time)
        request = make_request(str(number), job, job.time)
        live = self.live[request.request_id] = Live(request, job.time, RequestTimes())
        if self.setup.enable_prefix_caching:
            seq = request.get_seqs()[0]
            self.scheduler.kv.set_chain(seq, NamedBlocks(seq.data, request.request_id, job, self.setup.block_size))
        self.scheduler.add_request(request)
        return live.times

    def advance(self, until: float) -> None:
        """Take the steps that are over at `until`. The next one is begun only before that: what comes at that very
        moment may be in it."""
        while True:
            if self._output is None:
                if not self.live or self.now >= until:
                    return
                self._begin()
            if self._end > until:
                return
            self._finish_step()

    def _begin(self) -> None:
        self._record = self.scheduler.record
        output = self._output = self.scheduler.schedule()
        shape = StepShape.of(output)
        seconds = self.cost.seconds(*shape) if shape.tokens else 0.0
        self._end = self.now + seconds
        self.steps += 1
        self.busy += seconds
        self.rows += shape.seqs
        if self._record is not None:
            self._record.times = [self.now] * 3  # it takes no time to schedule and to launch

    def _finish_step(self) -> None:
        """The step is over: its tokens are there."""
        output, self._output = self._output, None
        assert output is not None
        self.now = self._end
        draws = [
            TOKEN_ID if seq.num_computed_tokens + count >= seq.get_len() else None
            for seq, count in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True)
        ]
        gained = self.scheduler.update_from_output(output, draws)
        if self._record is not None:
            self._record.ended = [(seq, status) for seq, status in gained if status is not None]
            self._record.token_ids = list(draws)
        for seq, status in gained:
            request, arrival, times = self.live[seq.request_id]
            times.arrivals.append(self.now - arrival)
            if status is not None:
                times.num_tokens, times.e2el = len(times.arrivals), times.arrivals[-1]
                del self.live[seq.request_id]
                self.scheduler.finish(request, seq, status)
        if self._record is not None and self._listener is not None:
            self._record.times += [self.now] * 3
            self._listener(self._record)
