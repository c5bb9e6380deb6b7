"""What a step costs besides the model: the host's part, measured when an engine that guesses is made.

    step of 1 sequence     model + fixed +      per_token       the same for 16, and two unknowns are found
    step of 16 sequences   model + fixed + 16 * per_token
    the same with guesses, all of them wrong: what is more than the model's part is the price of guessing

With a small model the host's part is the larger one. Guesses save it, and without it they would seem not to pay.

vLLM: none
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from folovllm.core.draft_length import DraftLength, HostCosts
from folovllm.request import Sequence
from folovllm.sampling_params import SamplingParams
from folovllm.spec_decode.ngram import NgramProposer

STEPS, MANY = 12, 16
LONG = 0.02  # seconds of a model's step, beside which the host's are nothing


class Wrong(NgramProposer):
    """Guesses at once, and hardly ever right."""

    def propose(self, seqs: list[Sequence], counts: list[int]) -> list[list[int]]:
        return [[0] * count for count in counts]


def measure_host_costs(engine: Any, clock: Callable[[], float] = time.perf_counter) -> None:
    """Tell an LLMEngine's DraftLength, by real steps, and leave the engine as if it had made none."""
    core, scheduler, speculation = engine.core, engine.scheduler, engine.runner.speculation
    before = scheduler.drafts.length, core.run_ahead, speculation.proposer, speculation.rejects
    costs, longest = scheduler.drafts.length.costs, 2 * STEPS + 4
    most = min(MANY, scheduler.max_num_seqs, scheduler.kv.pool.num_free // scheduler.kv.blocks_for(longest))
    if costs is None or costs.seconds[0] > LONG or most < 2 or engine.max_model_len < longest:
        return
    core.run_ahead = False
    try:
        scheduler.drafts.length = None
        one, many = (_quickest_step(engine, count, clock) - costs.seconds_for(count) for count in (1, most))
        scheduler.drafts.length, speculation.proposer, speculation.rejects = DraftLength(1, None), Wrong(1, 1), False
        one_more, many_more = (
            _quickest_step(engine, count, clock) - costs.seconds_for(2 * count) - plain
            for count, plain in ((1, one), (most, many))
        )
    finally:
        scheduler.drafts.length, core.run_ahead, speculation.proposer, speculation.rejects = before
    costs.host = HostCosts(*_line(one, many, most), *_line(one_more, many_more, most), hidden=core.run_ahead)
    scheduler.start_over()  # nothing can be found of what was computed
    scheduler.drafts.num_drafts = scheduler.drafts.num_draft_tokens = 0
    scheduler.drafts.num_accepted_per_pos = []
    scheduler.kv.num_queries = scheduler.kv.num_hits = 0


def _line(one: float, many: float, count: int) -> tuple[float, float]:
    """What is there in any case, and what comes with each of so many. Neither is negative: that would be noise."""
    each = max(0.0, many - one) / (count - 1)
    return max(0.0, one - each), each


def _quickest_step(engine: Any, count: int, clock: Callable[[], float]) -> float:
    names = [f"cost-{number}" for number in range(count)]
    for name in names:
        engine.add_request(name, [0], SamplingParams(temperature=0, max_tokens=2 * STEPS + 2, ignore_eos=True))
    seconds = []
    for _ in range(STEPS):
        began = clock()
        engine.step()
        seconds.append(clock() - began)
    for name in names:
        engine.abort_request(name)
    return min(seconds[1:])  # the first one computes the prompts
