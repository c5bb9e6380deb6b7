import random
from functools import cache

from folovllm.config import SchedulerConfig
from folovllm.core.kv_cache_manager import KVCacheManager
from folovllm.core.scheduler import Scheduler
from folovllm.lora.request import LoRAModel
from folovllm.mine.admission import Waiting, order
from folovllm.request import Request
from folovllm.sampling_params import SamplingParams
from folovllm.worker.lora import LoRASlots
from lab_judge import expect, invariant, measure

SLOTS = 2
PATIENCE = 160  # steps
LORAS = [LoRAModel(str(number), bytes([number]), {}) for number in range(12)]


def load(kind):
    """400 requests: (step of arrival, adapter, output tokens). All adapters alike, two favourites, or bursts of one."""
    rng, at, lora, rows = random.Random(12), 0.0, 0, []
    for _ in range(400):
        at += rng.expovariate(1 / {"alike": 2.0, "favourites": 1.6, "bursts": 1.8}[kind])
        if kind == "favourites":
            lora = rng.randrange(2) if rng.random() < 0.8 else rng.randrange(2, 12)
        elif kind == "alike" or rng.random() < 0.3:
            lora = rng.randrange(12)
        rows.append((int(at), lora, rng.randint(4, 20)))
    return rows


def line(made, rows, scheduler, now):
    """The waiting requests, which came in the order of their numbers, as the learner orders them."""
    numbers = sorted(int(request.request_id) for request in scheduler.waiting)
    waiting = [Waiting(arrived=rows[number][0], lora=rows[number][1]) for number in numbers]
    running = [rows[int(request.request_id)][1] for request in scheduler.running]
    owner = {id(each): number for each, number in zip(waiting, numbers, strict=True)}
    ordered = [owner[id(each)] for each in order(list(waiting), running, now)]
    expect(sorted(ordered), sorted(numbers))
    return [made[number] for number in ordered]


@cache
def serve(kind):
    """(longest wait for a first token, in steps; adapters loaded), by the real scheduler and the real slots. A step
    has at most 8 requests."""
    rows, now, made, first = load(kind), 0, [], {}
    scheduler = Scheduler(SchedulerConfig(512, 8, 64), KVCacheManager(200, 4, 0), frozenset(), max_loras=SLOTS)
    slots = LoRASlots(lambda slot, lora: None, SLOTS)
    while len(made) < len(rows) or scheduler.has_unfinished_requests():
        while len(made) < len(rows) and rows[len(made)][0] <= now:
            _, lora, tokens = rows[len(made)]
            made.append(Request(str(len(made)), None, [7], SamplingParams(max_tokens=tokens), lora=LORAS[lora]))
            scheduler.add_request(made[-1])
        ordered = line(made, rows, scheduler, now)
        scheduler.waiting.clear()
        for place, request in enumerate(ordered):
            scheduler.waiting.add(request, (0, place))
        output = scheduler.schedule()
        slots.of(output.scheduled_seqs)
        now += 1
        for seq, ended in scheduler.update_from_output(output, [7] * len(output.scheduled_seqs)):
            number = int(seq.request_id)
            first.setdefault(number, now - rows[number][0])
            if ended is not None:
                scheduler.finish(made[number], seq, ended)
    return max(first.values()), slots.num_loads


@invariant(1)
def test_everybody_is_in_the_line_once():
    waiting = [Waiting(arrived=3, lora=1), Waiting(arrived=4, lora=0), Waiting(arrived=4, lora=1)]
    ordered = order(list(waiting), [0, 0], 9)
    expect(sorted(map(id, ordered)) == sorted(map(id, waiting)), True)


@invariant(1)
def test_nobody_waits():
    expect(list(order([], [0, 1], 9)), [])


@invariant(2)
def test_nobody_starves():
    longest = max(serve(kind)[0] for kind in ("alike", "favourites", "bursts"))
    expect(max(longest, PATIENCE), PATIENCE)


@invariant(3)
def test_the_loads():
    measure(sum(serve(kind)[1] for kind in ("alike", "favourites", "bursts")), at_most=225)
