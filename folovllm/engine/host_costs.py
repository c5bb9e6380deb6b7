"""What a step costs besides the model: the host's part, measured when an engine that guesses is made.

    step of 1 sequence     model + fixed +      per_token       the same for 16, and two unknowns are found
    step of 16 sequences   model + fixed + 16 * per_token

With a small model the host's part is the larger one. Guesses save it, and without it they would seem not to pay.

vLLM: none
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from folovllm.core.draft_length import HostCosts
from folovllm.core.prefix_caching_manager import PrefixCachingManager
from folovllm.sampling_params import SamplingParams

STEPS, MANY = 12, 16
LONG = 0.02  # seconds of a model's step, beside which the host's are nothing


def measure_host_costs(engine: Any, clock: Callable[[], float] = time.perf_counter) -> None:
    """Tell an LLMEngine's DraftLength, by real steps without guesses, and leave the engine as if it had made none."""
    scheduler, draft_length = engine.scheduler, engine.scheduler.draft_length
    costs = draft_length.costs
    most = min(MANY, scheduler.max_num_seqs, scheduler.kv.pool.num_free)
    if costs is None or costs.seconds[0] > LONG or most < 2 or engine.max_model_len < STEPS + 2:
        return
    core, runs_ahead = engine.core, engine.core.run_ahead
    scheduler.draft_length, core.run_ahead = None, False
    try:
        one, many = (_quickest_step(engine, count, clock) - costs.seconds_for(count) for count in (1, most))
    finally:
        scheduler.draft_length, core.run_ahead = draft_length, runs_ahead
    per_token = max(0.0, many - one) / (most - 1)
    costs.host = HostCosts(max(0.0, one - per_token), per_token, hidden=runs_ahead)
    scheduler.start_over()  # nothing can be found of what was computed
    if isinstance(scheduler.kv, PrefixCachingManager):
        scheduler.kv.num_queries = scheduler.kv.num_hits = 0


def _quickest_step(engine: Any, count: int, clock: Callable[[], float]) -> float:
    names = [f"cost-{number}" for number in range(count)]
    for name in names:
        engine.add_request(name, [0], SamplingParams(temperature=0, max_tokens=STEPS + 1, ignore_eos=True))
    seconds = []
    for _ in range(STEPS):
        began = clock()
        engine.step()
        seconds.append(clock() - began)
    for name in names:
        engine.abort_request(name)
    return min(seconds[1:])  # the first one computes the prompts
