"""One simulated engine: the real scheduler, the real cache, and simulated time.

    arrivals ─▶ add()    advance(t)   schedule() ─▶ StepShape ─▶ cost model ─▶ the step ends so many seconds later
                                      update_from_output(), finish(): all but the tokens is as in EngineCore.step

A token that is drawn is 0, and a request ends by its length.

vLLM: none
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from folovllm.config import SchedulerConfig
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.observer import Observers
from folovllm.core.scheduler import Scheduler
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import Request, Sequence, SequenceStatus
from folovllm.simulator.cost_model import CostModel, StepShape
from folovllm.simulator.load import Job
from folovllm.simulator.meter import Meter
from folovllm.simulator.prompts import NamedBlocks, make_request

TOKEN_ID = 0


@dataclass(frozen=True)
class Setup:
    """An engine's settings. `config`: with its budget and max_model_len filled in."""

    config: SchedulerConfig
    num_blocks: int
    block_size: int = 16
    num_swap_blocks: int = 0
    enable_prefix_caching: bool = True

    def make_scheduler(self, observers: Observers) -> Scheduler:
        sizes, caching = (self.num_blocks, self.block_size, self.num_swap_blocks), self.enable_prefix_caching
        kv = KVCacheManager(*sizes, enable_prefix_caching=caching, observers=observers)
        return Scheduler(self.config, kv, frozenset(), observers=observers)


@dataclass(slots=True)
class Live:
    """What is remembered of a request until it ends."""

    request: Request
    job: Job
    arrival: float
    first: float = 0.0
    last: float = 0.0
    """When its newest token came, of one that was preempted since; else 0."""


@dataclass(slots=True)
class Counts:
    """Over all steps of a replica."""

    steps: int = 0
    busy: float = 0.0
    """Seconds in which a step was under way."""
    rows: int = 0


@dataclass
class Replica:
    """Args:
    on_finish: called with the replica's name and the time when a request ends.
    """

    name: str
    setup: Setup
    cost: CostModel
    meter: Meter
    on_finish: Callable[[str, float], None] = field(default=lambda name, now: None)

    def __post_init__(self) -> None:
        self.observers = Observers()
        self.scheduler = self.setup.make_scheduler(self.observers)
        self.counts = Counts()
        self.live: dict[str, Live] = {}
        self.now = 0.0  # at which its newest step began or ended, or a request came
        self._end = 0.0
        self._output: SchedulerOutput | None = None
        self._previous_end = 0.0

    def add(self, number: int, job: Job, now: float) -> bool:
        """False: it can never be served, as the engine's own check of a request says."""
        config = self.setup.config
        if job.prompt_tokens >= config.max_model_len:
            self.meter.refused += 1
            return False
        self.now = max(self.now, now)
        request = make_request(str(number), job, now)
        self.live[request.request_id] = Live(request, job, now)
        if job.token_ids is None and self.setup.enable_prefix_caching:
            seq = request.get_seqs()[0]
            names = NamedBlocks(seq.data, request.request_id, job, self.setup.block_size)
            self.scheduler.kv.set_chain(seq, names)
        self.scheduler.add_request(request)
        return True

    def advance(self, until: float, *, watched: bool = False) -> None:
        """Take the steps that are over at `until`. The next one is begun only before that: what comes at that very
        moment may be in it.

        watched: stop after a step by which a request ends.
        """
        ended = self.meter.finished
        while True:
            if self._output is None:
                if not self.live or self.now >= until:
                    return
                self._begin()
            if self._end > until:
                return
            self._finish_step()
            if watched and self.meter.finished != ended:
                return

    def next_end(self) -> float:
        """When the step is over that is under way, or that begins at once; infinity where there is nothing to do."""
        self.advance(math.nextafter(self.now, math.inf))
        return self._end if self._output is not None else math.inf

    def _begin(self) -> None:
        output = self._output = self.scheduler.schedule()
        shape = StepShape.of(output)
        seconds = self.cost.seconds(*shape) if shape.tokens else 0.0
        self._end = self.now + seconds
        counts = self.counts
        counts.steps += 1
        counts.busy += seconds
        counts.rows += shape.seqs
        for observer in self.observers:
            observer.launched()

    def _finish_step(self) -> None:
        """The step is over: its tokens are there."""
        output, self._output = self._output, None
        assert output is not None
        self.now = self._end
        scheduler = self.scheduler
        draws = [
            TOKEN_ID if seq.num_computed_tokens + count >= seq.get_len() else None
            for seq, count in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True)
        ]
        for seq_id in output.stale_seq_ids:
            live = self.live[seq_id.rpartition("-")[0]]
            live.last = live.last or (live.first and self._previous_end)
        gained = scheduler.update_from_output(output, draws)
        ended = self._note_tokens(gained)
        self._previous_end = self.now
        for seq, status in ended:
            self._finish(seq, status)
        for observer in self.observers:
            observer.step_ended([])

    def _note_tokens(
        self, gained: list[tuple[Sequence, SequenceStatus | None]]
    ) -> list[tuple[Sequence, SequenceStatus]]:
        """Measure the gaps; returns which sequences end."""
        common, ended = 0, list[tuple[Sequence, SequenceStatus]]()
        for seq, status in gained:
            live = self.live[seq.request_id]
            if not live.first:
                live.first = self.now
            elif live.last:
                self.meter.itl.add(self.now - live.last)
                live.last = 0.0
            else:
                common += 1
            if status is not None:
                ended.append((seq, status))
        if common:
            self.meter.itl.add(self.now - self._previous_end, common)
        return ended

    def _finish(self, seq: Sequence, status: SequenceStatus) -> None:
        """A sequence has ended, and its request with it; it is forgotten."""
        live = self.live.pop(seq.request_id)
        self.scheduler.finish(live.request, seq, status)
        prompt, output, urgent = seq.get_prompt_len(), seq.get_output_len(), live.job.priority < 0
        self.meter.finish(live.arrival, live.first, self.now, prompt, output, urgent=urgent)
        self.on_finish(self.name, self.now)
