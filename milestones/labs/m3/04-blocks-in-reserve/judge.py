import random

from folovllm.config import SchedulerConfig
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.mine.reserve import reserve
from folovllm.request import Request, SequenceStatus
from folovllm.sampling_params import SamplingParams
from lab_judge import expect, invariant, measure

PATIENCE = 4000  # ms. With the engine's reserve, 1 block of 120, the longest wait of this load is 3,993


def load():
    """200 requests, more than can be served at once: (arrival in ms, prompt tokens, output tokens)."""
    rng, at, rows = random.Random(3), 0.0, []
    for _ in range(200):
        at += rng.expovariate(1 / 30)
        rows.append((at, rng.randint(4, 60), rng.choice((rng.randint(2, 20), rng.randint(40, 120)))))
    return rows


def serve(rows):
    """(longest wait for a first token in ms, tokens computed anew), by the real scheduler with 120 blocks of 4 tokens.
    A step takes 5 ms and 0.1 ms for each token."""
    config = SchedulerConfig(256, 32, max_model_len=256, preemption_mode="recompute")
    scheduler = Scheduler(config, KVCacheManager(120, 4, 0), frozenset())
    now, computed, made, first = 0.0, 0, [], {}
    while len(made) < len(rows) or scheduler.has_unfinished_requests():
        if not scheduler.has_unfinished_requests():
            now = max(now, rows[len(made)][0])
        while len(made) < len(rows) and rows[len(made)][0] <= now:
            _, prompt, output = rows[len(made)]
            made.append(Request(str(len(made)), None, [7] * prompt, SamplingParams(max_tokens=output)))
            scheduler.add_request(made[-1])
        running = [seq for request in scheduler.running for seq in request.get_seqs(SequenceStatus.RUNNING)]
        scheduler.watermark = max(0, reserve([(seq.get_prompt_len(), seq.get_output_len()) for seq in running]))
        output = scheduler.schedule()
        computed += output.total_num_scheduled_tokens
        now += 5 + 0.1 * output.total_num_scheduled_tokens
        for seq, ended in scheduler.update_from_output(output, [7] * len(output.scheduled_seqs)):
            number = int(seq.request_id)
            first.setdefault(number, now - rows[number][0])
            if ended is not None:
                scheduler.finish(made[number], seq, ended)
    once = sum(prompt + output - 1 for _, prompt, output in rows)
    return max(first.values()), computed - once


@invariant(1)
def test_a_reserve_is_a_whole_number():
    kept = reserve([(12, 3), (40, 70)])
    expect(isinstance(kept, int) and kept >= 0, True)


@invariant(2)
def test_nobody_starves():
    longest, _ = serve(load())
    expect(max(longest, PATIENCE), PATIENCE)


@invariant(3)
def test_tokens_computed_anew():
    _, again = serve(load())
    measure(again, at_most=3000)
