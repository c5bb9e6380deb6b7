"""A scheduler without a model that writes traces, as a simulator does: the tokens are made up, and so are the times."""

from __future__ import annotations

from pathlib import Path

from folovllm.config import SchedulerConfig
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.observer import Observers
from folovllm.core.scheduler import Scheduler
from folovllm.request import Request
from folovllm.sampling_params import SamplingParams
from folovllm.tracing.attach import make_header
from folovllm.tracing.tracer import Tracer
from folovllm.tracing.writer import TraceWriter

BLOCK_SIZE = 16


class Simulated:
    """Requests through the real scheduler. A step takes `step_seconds`; every token drawn is 7."""

    def __init__(self, path: Path, *, num_blocks: int = 64, max_num_seqs: int = 8, budget: int = 64) -> None:
        config = SchedulerConfig(
            max_num_batched_tokens=budget,
            max_num_seqs=max_num_seqs,
            max_model_len=4096,
            enable_chunked_prefill=True,
            long_prefill_token_threshold=0,
        )
        observers = Observers()
        kv = KVCacheManager(num_blocks, BLOCK_SIZE, num_blocks, enable_prefix_caching=True, observers=observers)
        self.scheduler = Scheduler(config, kv, frozenset(), observers=observers)
        self.now, self.step_seconds = 0.0, 0.01
        facts = {"model": "none", "device": "none", "dtype": "none", "preemption_mode": "auto", "clock": "simulated"}
        header = make_header(self.scheduler, **facts)
        self.tracer = Tracer(TraceWriter(path), self.scheduler, observers, header, lambda: self.now)
        self.requests: dict[str, Request] = {}

    def add(self, request_id: str, prompt: list[int], max_tokens: int, **params: object) -> None:
        request = Request(request_id, None, prompt, SamplingParams(max_tokens=max_tokens, **params))  # type: ignore[arg-type]
        self.requests[request_id] = request
        self.scheduler.add_request(request)

    def step(self) -> None:
        output = self.scheduler.schedule()
        self.tracer.launched()
        self.now += self.step_seconds
        tokens = [7 if seq.num_computed_tokens + n >= seq.get_len() else None
                  for seq, n in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True)]  # fmt: skip
        tokens += [7] * len(output.forks)
        gained = self.scheduler.update_from_output(output, tokens)
        for seq, ended in gained:
            if ended is not None:
                self.scheduler.finish(self.requests[seq.request_id], seq, ended)
        self.tracer.step_ended([])

    def run(self) -> None:
        while self.scheduler.has_unfinished_requests():
            self.step()
        self.tracer.close()
