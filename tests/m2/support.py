"""Shared by M2's tests: a scheduler without a model, a desk that plays the engine to it, engines of a given size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from folovllm import EngineConfig, LLMEngine
from folovllm.config import SchedulerConfig
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.request import Request, Sequence, SequenceStatus
from folovllm.sampling_params import SamplingParams
from tests.m1.support import kept

BLOCK_SIZE = 4
TOKEN = 7  # what every sequence of a Desk says; no EOS


def make_scheduler(
    max_num_seqs: int = 8, max_num_batched_tokens: int = 64, max_model_len: int = 64, policy: Any = "fcfs"
) -> Scheduler:
    """A scheduler with blocks for max_num_seqs sequences of any length."""
    config = SchedulerConfig(max_num_batched_tokens, max_num_seqs, max_model_len, policy=policy)
    kv = KVCacheManager(max_num_seqs * -(-max_model_len // BLOCK_SIZE), BLOCK_SIZE)
    return Scheduler(config, kv, eos_token_ids=frozenset())


def rows_of(output: SchedulerOutput) -> list[Sequence]:
    """All sequences that draw a token in this step, in the order in which update() takes the tokens."""
    return output.rows


class Desk:
    """Plays the engine to a scheduler: knows the requests, and ends a sequence where update() says so."""

    def __init__(self, **kwargs: Any) -> None:
        self.scheduler = make_scheduler(**kwargs)
        self.requests: dict[str, Request] = {}

    def add(self, name: str, num_tokens: int = 4, *, priority: int = 0, n: int = 1, max_tokens: int = 3) -> Request:
        request = Request(name, None, [TOKEN] * num_tokens, SamplingParams(n=n, max_tokens=max_tokens))
        request.priority = priority
        self.requests[name] = request
        self.scheduler.add_request(request)
        return request

    def abort(self, name: str) -> None:
        self.scheduler.abort(self.requests[name])

    def update(self, output: SchedulerOutput) -> list[Sequence]:
        """Give every row its token; returns the sequences that took theirs."""
        gained = self.scheduler.update_from_output(output, [TOKEN] * len(rows_of(output)))
        for seq, ended in gained:
            if ended is not None:
                self.scheduler.finish(self.requests[seq.request_id], seq, ended)
        return [seq for seq, _ in gained]

    def step(self) -> dict[str, int]:
        """One step; {name of the request: tokens that it computed}."""
        output = self.scheduler.schedule()
        computed: dict[str, int] = {}
        for seq, num_tokens in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True):
            computed[seq.request_id] = computed.get(seq.request_id, 0) + num_tokens
        self.update(output)
        self.scheduler.check_invariants()
        return computed

    def run(self, most: int = 1000) -> list[dict[str, int]]:
        """Step until nothing is left."""
        steps = []
        while self.scheduler.has_unfinished_requests():
            assert len(steps) < most, "the scheduler does not get done"
            steps.append(self.step())
        return steps

    def status(self, name: str) -> list[SequenceStatus]:
        """Of its sequences; those that have not been made wait."""
        request = self.requests[name]
        return [seq.status for seq in request.get_seqs()]


def make_engine(folder: Path | str, **kwargs: Any) -> LLMEngine:
    """A float32 engine on the CPU; any field of the configs by its name."""
    return LLMEngine(EngineConfig.from_kwargs(model=str(folder), dtype="float32", device="cpu", **kwargs))


def assert_idle(engine: LLMEngine) -> None:
    """No request is left, no sequence runs, nothing of the cache is in use."""
    engine.scheduler.check_invariants()
    assert not engine.has_unfinished_requests()
    assert (engine.requests, kept(engine)) == ({}, {})
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.running_seqs, stats.kv_blocks_used) == (0, 0, 0, 0)


@contextmanager
def counting_forwards(engine: LLMEngine) -> Iterator[list[int]]:
    """A list that gets the number of tokens of each of the model's forwards."""
    sizes: list[int] = []

    def see(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        sizes.append(len(args[0]))

    handle = engine.runner.model.register_forward_pre_hook(see)
    try:
        yield sizes
    finally:
        handle.remove()
