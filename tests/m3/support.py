"""Shared by M3's tests: a scheduler over a paged cache without a model, and a desk that plays the engine to it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from folovllm.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.core.scheduler_output import SchedulerOutput
from folovllm.engine.beams import BeamGroup
from folovllm.engine.core import EngineCore, SequenceChanges
from folovllm.engine.input_processor import check_beams_fit
from folovllm.request import Request, Sequence, SequenceStatus
from folovllm.sampling_params import SamplingParams
from folovllm.worker.model_runner_output import LogprobsRow
from tests.m3.beam_support import num_candidates
from tests.m3.shadow_cache import ShadowCache

TOKEN = 7  # what every sequence says, unless a seed is given
EOS = 0
MOST_STEPS = 6000  # of one desk; a fraction of a second


class PagedDesk:
    """Plays the engine to a scheduler, and the worker to its block tables: a shadow of the KV cache, which holds what
    each slot was written for, is checked at every step.

    seed: for the tokens that are drawn, out of a few; None: always TOKEN.
    """

    def __init__(
        self,
        num_blocks: int = 8,
        block_size: int = 4,
        num_swap_blocks: int = 0,
        *,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int | None = None,
        max_model_len: int = 64,
        mode: Any = "auto",
        policy: Any = "fcfs",
        seed: int | None = None,
    ) -> None:
        max_model_len = min(max_model_len, num_blocks * block_size)
        config = SchedulerConfig(
            max_num_batched_tokens or max_model_len, max_num_seqs, max_model_len, preemption_mode=mode, policy=policy
        )
        self.limits = config
        self.kv = KVCacheManager(num_blocks, block_size, num_swap_blocks)
        self.scheduler = Scheduler(config, self.kv, frozenset([EOS]))
        self.scheduler.watermark = 0  # a test of the reserve says how many; no other depends on that policy
        self.config = EngineConfig(
            ModelConfig("m", max_model_len=max_model_len),
            CacheConfig(block_size, num_kv_blocks=num_blocks),
            replace(config, max_num_seqs=self.scheduler.max_num_seqs),
        )
        self.shadow = ShadowCache(block_size)
        self.requests: dict[str, Request] = {}
        self.beams: dict[str, BeamGroup] = {}
        self.num_steps = 0
        self.draw = None if seed is None else random.Random(seed)

    def add(
        self,
        name: str,
        prompt: int | list[int] = 4,
        *,
        priority: int = 0,
        n: int = 1,
        max_tokens: int = 3,
        beams: int = 0,
    ) -> Request:
        """beams: the width of a beam search. Raises ValueError where the engine would refuse the request."""
        prompt = [TOKEN] * prompt if isinstance(prompt, int) else prompt
        params = SamplingParams(n=beams or n, max_tokens=max_tokens, use_beam_search=beams > 0)
        check_beams_fit(len(prompt), params, self.config)
        request = Request(name, None, prompt, params, priority=priority)
        self.requests[name] = request
        if beams:
            self.beams[name] = BeamGroup(request, self.scheduler.eos_token_ids, self.scheduler.max_model_len)
        self.scheduler.add_request(request)
        return request

    def abort(self, name: str) -> None:
        self.beams.pop(name, None)
        self.scheduler.abort(self.requests[name])

    def schedule(self) -> SchedulerOutput:
        """The next step, carried out on the shadow."""
        self.num_steps += 1
        assert self.num_steps < MOST_STEPS, "the scheduler does not get done"
        output = self.scheduler.schedule()
        assert len(output.rows) == len({seq.seq_id for seq in output.rows}) <= self.scheduler.max_num_seqs
        assert output.total_num_scheduled_tokens == sum(output.num_scheduled_tokens)
        assert output.total_num_scheduled_tokens <= self.scheduler.max_num_batched_tokens
        self.shadow.execute(output)
        return output

    def update(self, output: SchedulerOutput) -> list[Sequence]:
        """Give every row that is at its end a token; returns the sequences that took theirs."""
        computed = [*output.num_scheduled_tokens, *[0] * len(output.forks)]
        draws = {
            seq: self._candidates(seq) if seq.sampling_params.use_beam_search else self._token()
            for seq, num_tokens in zip(output.rows, computed, strict=True)
            if seq.num_computed_tokens + num_tokens == seq.get_len() and seq.status is SequenceStatus.RUNNING
        }
        tokens = [token if isinstance(token := draws.get(seq), int) else None for seq in output.rows]
        gained = self.scheduler.update_from_output(output, tokens)
        for seq, ended in gained:
            if ended is not None:
                self.scheduler.finish(self.requests[seq.request_id], seq, ended)
        rows = {seq: row for seq, row in draws.items() if isinstance(row, LogprobsRow)}
        changes = SequenceChanges()
        for name in {seq.request_id for seq in rows}:
            if self.beams[name].advance(rows, changes):
                del self.beams[name]
        self._finish = self.scheduler.finish
        EngineCore.apply(self, changes)  # type: ignore[arg-type]  # of which it needs the scheduler only
        return [seq for seq, _ in gained]

    def interrupted_step(self) -> None:
        """A step of which nothing is known: what it was to move and to compute may or may not be in the cache."""
        self.scheduler.schedule()
        self.scheduler.start_over()
        self.shadow.scramble()
        self.scheduler.check_invariants()

    def step(self) -> dict[str, int]:
        """One step; {name of the request: tokens that it computed}."""
        output = self.schedule()
        computed: dict[str, int] = {}
        for seq, num_tokens in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True):
            computed[seq.request_id] = computed.get(seq.request_id, 0) + num_tokens
        self.update(output)
        self.scheduler.check_invariants()
        return computed

    def run(self) -> list[dict[str, int]]:
        """Step until nothing is left, and see that every block has come back."""
        steps = []
        while self.scheduler.has_unfinished_requests():
            steps.append(self.step())
        self.assert_empty()
        return steps

    def assert_empty(self) -> None:
        assert all(request.is_finished() for request in self.requests.values())
        assert self.kv.pool.num_free == self.kv.pool.num_blocks
        assert self.kv.swap_pool.num_free == self.kv.swap_pool.num_blocks
        self.scheduler.check_invariants()

    def status(self, name: str) -> list[SequenceStatus]:
        """Of its sequences; those that have not been made wait."""
        request = self.requests[name]
        return [seq.status for seq in request.get_seqs()]

    def where(self) -> tuple[list[str], list[str], list[str]]:
        """Names of the requests that run, are swapped, and wait, each in their order."""
        lines = (self.scheduler.running, self.scheduler.swapped, self.scheduler.waiting)
        running, swapped, waiting = ([request.request_id for request in line] for line in lines)
        return running, swapped, waiting

    def _token(self) -> int:
        return TOKEN if self.draw is None else self.draw.choice([EOS, 1, 1, 1, 2, 2, 3])

    def _candidates(self, seq: Sequence) -> LogprobsRow:
        """A row as the sampler would report it: the likeliest in front, then all candidates."""
        draw = self.draw or random.Random(seq.get_len())
        count = num_candidates(self.beams[seq.request_id].search)
        logprobs = sorted((-draw.expovariate(1.0) for _ in range(count)), reverse=True)
        token_ids = draw.sample(range(count + 2), count)
        return LogprobsRow([token_ids[0], *token_ids], [logprobs[0], *logprobs], rank=1)
