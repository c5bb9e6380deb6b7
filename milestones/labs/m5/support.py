"""Shared by M5's judges: a scheduler with blocks of 4 tokens, requests of a given length, and its steps one by one."""

from folovllm.config import SchedulerConfig
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.request import Request, SequenceStatus
from folovllm.sampling_params import SamplingParams

TOKEN = 7  # what every sequence says


def make_scheduler(budget=8, num_blocks=24, chunks=True, threshold=0, partial=1, seqs=8, policy="fcfs", swap_blocks=0):
    """budget: tokens of a step; threshold, partial: long_prefill_token_threshold, max_num_partial_prefills."""
    config = SchedulerConfig(
        budget,
        seqs,
        max_model_len=64,
        enable_chunked_prefill=chunks,
        long_prefill_token_threshold=threshold,
        max_num_partial_prefills=partial,
        policy=policy,
    )
    return Scheduler(config, KVCacheManager(num_blocks, block_size=4, num_swap_blocks=swap_blocks), frozenset())


def request(name, num_tokens, n=1, priority=0):
    made = Request(name, None, [TOKEN] * num_tokens, SamplingParams(n=n, max_tokens=32))
    made.priority = priority
    return made


def running(scheduler, made, num_computed):
    """Put the first sequence of a request among the running ones by hand, `num_computed` of its tokens in the cache."""
    seq = made.get_seqs()[0]
    scheduler.add_request(made)
    scheduler.waiting.remove(made)
    scheduler.kv.allocate_slots([(seq, num_computed)])
    seq.num_computed_tokens = num_computed
    seq.status = SequenceStatus.RUNNING
    scheduler.running.append(made)
    return seq


def work(output):
    """What a step computes: tokens by the request's name."""
    pairs = zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True)
    return {seq.request_id: num_tokens for seq, num_tokens in pairs}


def step(scheduler):
    """One step, and a token for each that came to the end of what it lacked."""
    output = scheduler.schedule()
    ends = [
        seq.num_computed_tokens + num_tokens == seq.get_len()
        for seq, num_tokens in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True)
    ]
    ends += [True] * len(output.forks)
    scheduler.update_from_output(output, [TOKEN if end else None for end in ends])
    return work(output)
