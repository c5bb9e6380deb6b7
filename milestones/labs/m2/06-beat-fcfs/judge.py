import random

from folovllm.mine.line import key
from lab_judge import expect, invariant, measure
from support import make_scheduler, request

PATIENCE = 1300  # ms. With first come, first served the longest wait of this load is 879


def load():
    """300 requests, more than can be served at once: (arrival in ms, prompt tokens, output tokens)."""
    rng, at, rows = random.Random(2), 0.0, []
    for _ in range(300):
        at += rng.expovariate(1 / 17)
        is_long = rng.random() < 0.15
        rows.append((at, rng.randint(300, 480) if is_long else rng.randint(4, 40), rng.randint(4, 30)))
    return rows


def waits(rows):
    """ms from each arrival to its first token, by the real scheduler. A step takes 5 ms and 0.1 ms for each token."""
    scheduler, now, made, first = make_scheduler(tokens=512, seqs=8), 0.0, [], {}
    while len(made) < len(rows) or scheduler.has_unfinished_requests():
        if not scheduler.has_unfinished_requests():
            now = max(now, rows[len(made)][0])
        while len(made) < len(rows) and rows[len(made)][0] <= now:
            at, prompt, output = rows[len(made)]
            made.append(request(str(len(made)), prompt, max_tokens=output))
            scheduler.waiting.add(made[-1], (key(at, prompt), len(made)))
        output = scheduler.schedule()
        now += 5 + 0.1 * output.total_num_scheduled_tokens
        for seq, ended in scheduler.update_from_output(output, [7] * len(output.scheduled_seqs)):
            number = int(seq.request_id)
            first.setdefault(number, now - rows[number][0])
            if ended is not None:
                scheduler.finish(made[number], seq, ended)
    return list(first.values())


@invariant(1)
def test_a_key_is_a_number():
    expect(isinstance(key(arrival=12.5, num_tokens=40), (int, float)), True)


@invariant(2)
def test_nobody_starves():
    longest = max(waits(load()))
    expect(max(longest, PATIENCE), PATIENCE)


@invariant(3)
def test_the_mean_wait():
    waited = waits(load())
    measure(sum(waited) / len(waited), at_most=300)
