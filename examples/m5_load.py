"""The tokens of each step under one stream of requests, with prompts whole and in chunks.

The scheduler is the engine's. The machine is imagined: it reads its weights in one unit of time, and can compute 16
tokens in that time.

Run it: python examples/m5_load.py
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import _tree  # noqa: F401 - folovllm is this tree's

from folovllm.config import SchedulerConfig
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.request import Request
from folovllm.sampling_params import SamplingParams

TOKENS_PER_UNIT = 16


class Arrival(NamedTuple):
    at: float  # units of time
    prompt: int  # tokens
    answer: int


class Step(NamedTuple):
    start: float
    length: float
    decodes: int
    prompt: int  # tokens of prompts


def arrivals(count: int = 24, seed: int = 3) -> list[Arrival]:
    """A Poisson stream: in the long run one request every eight units, and every fourth prompt a long one."""
    random, now, stream = Random(seed), 0.0, []
    for _ in range(count):
        now += random.expovariate(1 / 8)
        stream.append(Arrival(now, random.choice([8, 16, 32, 200]), random.randint(8, 24)))
    return stream


def serve(chunked: bool, budget: int) -> tuple[list[Step], float, float]:
    """All steps, the worst gap between two tokens of one answer, and the mean time to the first token."""
    config = SchedulerConfig(
        max_model_len=256, max_num_seqs=16, max_num_batched_tokens=budget, enable_chunked_prefill=chunked
    )
    scheduler = Scheduler(config, KVCacheManager(num_blocks=400, block_size=16), frozenset())
    line, requests = arrivals(), {}
    now, steps, last, gap, first = 0.0, [], {}, 0.0, []
    while line or scheduler.has_unfinished_requests():
        if not scheduler.has_unfinished_requests():
            now = max(now, line[0].at)
        while line and line[0].at <= now:
            arrival = line.pop(0)
            name = str(len(requests))
            params = SamplingParams(max_tokens=arrival.answer, ignore_eos=True)
            request = Request(name, None, [1] * arrival.prompt, params)
            requests[name] = (request, arrival)
            scheduler.add_request(request)
        output = scheduler.schedule()
        work = list(zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True))
        decodes = sum(seq.num_computed_tokens >= len(seq.data.prompt_token_ids) for seq, _ in work)
        tokens = sum(num for _, num in work)
        steps.append(Step(now, max(1.0, tokens / TOKENS_PER_UNIT), decodes, tokens - decodes))
        now += steps[-1].length
        drew = [seq.num_computed_tokens + num == seq.get_len() for seq, num in work]
        for seq, status in scheduler.update_from_output(output, [5 if draw else None for draw in drew]):
            request, arrival = requests[seq.request_id]
            if seq.seq_id in last:
                gap = max(gap, now - last[seq.seq_id])
            else:
                first.append(now - arrival.at)
            last[seq.seq_id] = now
            if status is not None:
                scheduler.finish(request, seq, status)
    return steps, gap, sum(first) / len(first)


if __name__ == "__main__":
    for title, chunked, budget in (("whole", False, 256), ("chunks", True, 32), ("chunks", True, 16)):
        steps, gap, ttft = serve(chunked, budget)
        largest = max(step.decodes + step.prompt for step in steps)
        over = steps[-1].start + steps[-1].length
        print(
            f"{title:6} budget {budget:3}: {len(steps):3} steps of at most {largest:3} tokens, "
            f"worst gap {gap:4.1f}, mean TTFT {ttft:4.1f}, over at {over:.0f}"
        )
