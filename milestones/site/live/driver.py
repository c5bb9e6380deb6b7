"""What a live page runs: a milestone's scheduler step by step, and the simulator under a load.

    watch({"milestone": "m5", "budget": 8, …, "requests": [["A", 5, 6, 0, 0], …]})    each step, who waits and why
    load({"device": "h200", "rate": 40, …}, say)                                      1,000 requests, simulated
    check({"id": "m0/02-fork", "text": …, …}, say)                                    an exercise: exercise_driver.py

It runs in the reader's browser, in Pyodide, with the core of one milestone and no other; the tests run it in CPython.
There is no model: a sequence draws a token, and for the scheduler one is as good as another. It imports nothing but
what it finds there.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

BLOCK_SIZE, MOST_STEPS = 4, 99
OWN, DRAWN = 1000, 100_000  # token ids: below OWN the text that requests share, then each one's own, then what is drawn
YOURS = "<your code>"

# Without a handler the package asks rich for one, which is not there.
logging.getLogger("folovllm").addHandler(logging.StreamHandler())


def answer(call: str, spec: str, say: Callable[[int], object] = lambda done: None) -> str:
    """JSON of {"found": …}, or of {"error": what is wrong, "lines": where in the reader's own code}."""
    try:
        asked = json.loads(spec)
        if call == "check":
            return json.dumps({"found": importlib.import_module("exercise_driver").check(asked, say)})
        return json.dumps({"found": watch(asked) if call == "watch" else load(asked, say)})
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == YOURS]
        if isinstance(error, SyntaxError) and error.filename == YOURS:
            lines = [error.lineno]
        said = str(error) if type(error) is ValueError and not lines else f"{type(error).__name__}: {error}"
        return json.dumps({"error": said, "lines": lines})


def watch(spec: dict[str, Any]) -> dict[str, Any]:
    """All steps, and the running example's picture of them."""
    with rewritten(spec.get("code", {})):
        trace = run(spec)
    return {"trace": trace, "svg": importlib.import_module("workshop.example_picture").draw(spec["milestone"], trace)}


@contextmanager
def rewritten(code: dict[str, str]) -> Iterator[None]:
    """{"folovllm/core/preemption.py choose_victims": another text}: it is in place of the milestone's own."""
    undo: list[tuple[Any, str, Any]] = []
    try:
        for where, text in code.items():
            path, name = where.split(" ")
            module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
            *owners, last = name.split(".")
            made: dict[str, Any] = {}
            exec(compile(text, YOURS, "exec"), vars(module), made)
            if last not in made:
                raise ValueError(f"the code must define {last}, got {', '.join(made) or 'nothing'}")
            places = [getattr(module, owner) for owner in owners]
            if not owners:
                old, loaded = getattr(module, last), list(sys.modules.items())
                places = [m for n, m in loaded if n.startswith("folovllm.") and vars(m).get(last) is old]
            for place in places:
                undo.append((place, last, vars(place)[last]))
                setattr(place, last, made[last])
        yield
    finally:
        for place, last, old in reversed(undo):
            setattr(place, last, old)


def make_scheduler(spec: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The milestone's scheduler over so many slots (M2) or blocks, and its settings by their names."""
    number = int(spec["milestone"][1:])
    scheduler = importlib.import_module("folovllm.core.scheduler").Scheduler
    settings: dict[str, Any] = {"max_num_batched_tokens": spec["budget"], "max_num_seqs": spec["seqs"]}
    if number >= 5:
        settings["enable_chunked_prefill"] = spec["chunks"]
    if spec["swap"]:
        settings["preemption_mode"] = "swap"
    config = importlib.import_module("folovllm.config").SchedulerConfig(**settings)
    limits = importlib.import_module("folovllm.engine.builder.budgets").resolve_scheduler_config(
        config, spec["longest"]
    )
    if number == 2:
        return scheduler(limits, spec["seqs"], frozenset()), {**settings, "max_model_len": spec["longest"]}
    longest = min(spec["longest"], spec["blocks"] * BLOCK_SIZE)  # as the engine does where the cache holds no more
    caching = {"enable_prefix_caching": spec["caching"]} if number >= 6 else {}
    kv = _watched(importlib.import_module("folovllm.core.kv_cache_manager").KVCacheManager)
    settings |= {"max_model_len": longest, "block_size": BLOCK_SIZE, "num_kv_blocks": spec["blocks"], **caching}
    limits = dataclasses.replace(limits, max_model_len=longest)
    swapping = {"num_swap_blocks": spec["blocks"]} if spec["swap"] else {}
    return scheduler(limits, kv(spec["blocks"], BLOCK_SIZE, **caching, **swapping), frozenset()), settings


def _watched(manager: type) -> Any:
    class Watched(manager):  # type: ignore[misc]  # of the milestone that is there
        """Remembers which sequences found too few blocks in this step."""

        def allocate_slots(self, seq_tokens: Any, *more: Any) -> Any:
            copies = super().allocate_slots(seq_tokens, *more)
            if copies is None:
                self.refused |= {seq.request_id for seq, _ in seq_tokens}
            return copies

    Watched.refused = set()
    return Watched


def make_requests(spec: dict[str, Any], longest: int) -> dict[str, Any]:
    """By name. Raises ValueError: a prompt that the engine would refuse."""
    request = importlib.import_module("folovllm.request").Request
    params = importlib.import_module("folovllm.sampling_params").SamplingParams
    made = {}
    for number, (name, prompt, outputs, _, shared) in enumerate(spec["requests"], 1):
        if prompt >= longest:
            raise ValueError(f"the prompt of {name} has {prompt} tokens, but max_model_len is {longest} here")
        own = [number * OWN + place for place in range(max(prompt - shared, 0))]
        tokens = [*range(min(shared, prompt)), *own]
        made[name] = request(name, None, tokens, params(max_tokens=outputs, ignore_eos=True), 0.0)
    return made


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """Until all requests have ended, MOST_STEPS at most. `steps` and `arrived` are as in workshop/example.json, `more`
    has what else there is to say of each step."""
    scheduler, settings = make_scheduler(spec)
    requests = make_requests(spec, settings["max_model_len"])
    arrivals = {name: after for name, _, _, after, _ in spec["requests"]}
    arrived: dict[str, int] = {}
    steps: list[list[dict[str, Any]]] = []
    more: list[dict[str, Any]] = []
    while len(steps) < MOST_STEPS and (len(arrived) < len(requests) or scheduler.has_unfinished_requests()):
        for name, after in arrivals.items():
            if after == len(steps):
                scheduler.add_request(requests[name])
                arrived[name] = len(steps) + 1
        if hasattr(scheduler, "kv"):
            scheduler.kv.refused.clear()
        output = scheduler.schedule()
        parts, said = look(scheduler, output, {name: requests[name] for name in arrived})
        ended = []
        draws = [
            DRAWN + len(steps) if seq.num_computed_tokens + count >= seq.get_len() else None
            for seq, count in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True)
        ]
        for seq, status in scheduler.update_from_output(output, draws):
            if status is not None:
                scheduler.finish(requests[seq.request_id], seq, status)
                ended.append(seq.request_id)
        scheduler.check_invariants()
        steps.append(parts)
        more.append({**said, "ended": ended})
    shown = {"requests": spec["requests"], "settings": settings, "arrived": arrived, "steps": steps, "more": more}
    return {**shown, "unfinished": scheduler.has_unfinished_requests()}


def look(scheduler: Any, output: Any, here: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What each running request computes in a step that was just scheduled, and what else a reader wants to know."""
    counts = {s.request_id: n for s, n in zip(output.scheduled_seqs, output.num_scheduled_tokens, strict=True)}
    gave_way = [seq_id.rpartition("-")[0] for seq_id in getattr(output, "stale_seq_ids", ())]
    parts, waits = [], {}
    for name, request in here.items():
        (seq,) = request.sequences.values()
        if seq.status.name == "RUNNING":
            count = counts.get(name, 0)
            parts.append({"r": name, "start": seq.num_computed_tokens, "n": count, "blocks": list(seq.block_ids)})
        if not seq.is_finished() and name not in counts:
            why = "gave way" if name in gave_way else _why(scheduler, output, request, gave_way)
            waits[name] = "swapped" if seq.status.name == "SWAPPED" else why
    pool = scheduler.kv.pool if hasattr(scheduler, "kv") else None
    free = list(pool.get_all_free_blocks()) if pool else None  # the next to be handed out is the first
    kept = [block for block in free or () if block in getattr(pool, "_cached", ())]
    facts = {"free": free, "kept": kept, "evicted": getattr(pool, "num_evicted", 0)}
    return parts, {"gave_way": gave_way, "waits": waits, **facts}


def _why(scheduler: Any, output: Any, request: Any, gave_way: list[str]) -> str:
    """Why a request that is here computes nothing in this step."""
    (seq,) = request.sequences.values()
    left = scheduler.max_num_batched_tokens - output.total_num_scheduled_tokens
    refused = scheduler.kv.refused if hasattr(scheduler, "kv") else set()
    if request.request_id in refused:
        return "blocks"
    if seq.status.name == "RUNNING":
        return "budget" if left == 0 else "passed over"  # as the reader's code may do
    if gave_way:
        return "preemption"
    if swapped := getattr(scheduler, "swapped", None):
        return f"behind {swapped[0].request_id}"
    if (first := scheduler.waiting.peek()) is not request:
        return f"behind {first.request_id}"
    if len(scheduler.running) >= scheduler.max_num_seqs:
        return "seqs"
    if refused:
        return "blocks"  # a running prompt lacks them: then nobody is let in
    return "passed over" if getattr(scheduler, "chunks", False) and left > 0 else "budget"


def load(spec: dict[str, Any], say: Callable[[int], object]) -> dict[str, Any]:
    """`spec["count"]` requests on a simulated device: percentiles 0 to 100 of TTFT and ITL in seconds, and the row that
    `folovllm bench simulate` prints. `say` is called with the requests that have come."""
    report = importlib.import_module("folovllm.simulator.report")
    shape = importlib.import_module("folovllm.bench.shapes").ModelShape.of(spec["model"])
    cost = report.Roofline(importlib.import_module("folovllm.simulator.devices").find_device(spec["device"]), shape)
    budget = spec["budget"] if spec["chunks"] else None  # else it must hold the longest prompt: the engine's own choice
    case = Namespace(
        request_rate=spec["rate"], burstiness=1.0, num_requests=spec["count"], seed=0, policy="fcfs", block_size=16,
        num_kv_blocks=None, max_num_batched_tokens=budget, max_num_seqs=spec["seqs"], max_model_len=None,
        no_chunked_prefill=not spec["chunks"], no_prefix_caching=not spec["caching"],
    )  # fmt: skip
    loads, setup = importlib.import_module("folovllm.simulator.load").LOADS, report.setup_of(cost, case)
    simulator = report.Simulator(setup, cost)

    def coming() -> Iterator[Any]:
        for number, job in enumerate(report.jobs_of(loads[spec["load"]], case)):
            say(number)
            yield job

    times = simulator.run(coming())
    return {
        "ttft": _hundredths([each.ttft for each in times if each.problem is None]),
        "itl": _hundredths([gap for each in times for gap in each.itl]),
        "row": {
            **report.load_row(times, simulator.now, {}),
            **report.counts(simulator),
            "budget": setup.config.max_num_batched_tokens,
            "blocks": setup.num_blocks,
        },
    }


def _hundredths(values: list[float]) -> list[float]:
    """Percentiles 0 to 100."""
    values = sorted(values)
    return [values[round(p / 100 * (len(values) - 1))] for p in range(101)]
