"""What long prompts do to those who are reading: two replicas that do both, or one for prompts and one for tokens.

    python -m workshop.prefill_apart --json prefill-apart.json      # needs the extras serve and ray

`readers` requests generate all the time, while new prompts of `prompt_len` tokens come, one after the other, each with
a short answer. The gap between two tokens of a reader is what its user sees. Both ways use the same two processes, by
turns: apart, `prefill-0` computes the prompts and `replica-0` finds their blocks in the tier; together, both are chosen
by their load.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from folovllm.bench.report import Report, Row
from folovllm.sampling_params import SamplingParams
from folovllm.serving.replicas.client import ReplicatedLLM
from folovllm.serving.replicas.launch import make_replicas
from folovllm.serving.replicas.options import ReplicaOptions
from folovllm.serving.routing import LeastLoaded, PrefixAffinity

COLUMNS = ["replicas", "gap_p50_ms", "gap_p99_ms", "ttft_p50_ms", "cached"]


def use(llm: ReplicatedLLM, way: str) -> None:
    llm.router = LeastLoaded()
    llm.prefill_router = PrefixAffinity() if way == "apart" else llm.router
    for name in llm.fleet.names:
        llm._router_of(name).add_replica(name)


async def read(llm: ReplicatedLLM, prompt: list[int], tokens: int) -> tuple[list[float], int]:
    """Seconds from the beginning to each token, and how many of the prompt's were cached."""
    began, cached = time.perf_counter(), 0
    times: list[float] = []
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    async for output in llm.generate(prompt, params):
        times += [time.perf_counter() - began] * (len(output.outputs[0].token_ids) - len(times))
        cached = output.num_cached_tokens or 0
    return times, cached


async def turn(llm: ReplicatedLLM, rng: random.Random, args: Any) -> Row:
    def prompt(length: int) -> list[int]:
        return rng.choices(range(10, 1000), k=length)

    readers = [asyncio.create_task(read(llm, prompt(16), args.tokens)) for _ in range(args.readers)]
    firsts, found = [], 0
    while not any(reader.done() for reader in readers):
        times, cached = await read(llm, prompt(args.prompt_len), 2)
        firsts.append(times[0])
        found += cached
    gaps = [
        late - early for times, _ in await asyncio.gather(*readers) for early, late in pairwise(times) if late > early
    ]
    return {
        "gap_p50_ms": statistics.median(gaps) * 1e3,
        "gap_p99_ms": sorted(gaps)[int(0.99 * (len(gaps) - 1))] * 1e3,
        "ttft_p50_ms": statistics.median(firsts) * 1e3,
        "cached": found / (len(firsts) * args.prompt_len),
    }


async def measure(llm: ReplicatedLLM, args: Any, console: Console) -> dict[str, list[Row]]:
    rng, found = random.Random(args.seed), {way: list[Row]() for way in ("together", "apart")}
    for number in track(range(args.rounds + 1), "rounds", console=console):
        for way, rows in found.items():
            use(llm, way)
            row = await turn(llm, rng, args)
            if number:  # the first warms up
                rows.append(row)
    await llm.shutdown()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = {"readers": 4, "tokens": 400, "prompt_len": 960, "rounds": 5, "seed": 0}
    for name, default in numbers.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=default, help="default: %(default)s")
    parser.add_argument("--json", type=Path, help="write the result here")
    args = parser.parse_args()
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        engine = {"num_kv_blocks": 1024, "kv_offloading_size": 0.25, "kv_offloading_path": folder}
        with console.status("starting the replicas …"):
            llm = make_replicas("embedded", engine, ReplicaOptions(replicas=2, prefill_replicas=1))
        found = asyncio.run(measure(llm, args, console))
    rows: list[Row] = [
        {"replicas": way, **{name: round(statistics.median(row[name] for row in each), 3) for name in COLUMNS[1:]}}
        for way, each in found.items()
    ]
    title = f"{args.readers} readers beside prompts of {args.prompt_len} tokens, two replicas"
    notes = [f"Medians of {args.rounds} rounds, with both ways in turn; a gap is between two tokens of a reader."]
    samples = [{name: [row[name] for row in each] for name in COLUMNS[1:]} for each in found.values()]
    report = Report(
        "prefill-apart",
        title,
        "python -m workshop.prefill_apart",
        COLUMNS,
        rows,
        notes,
        samples=samples,
        seed=args.seed,
    )
    report.show(Console())
    if args.json is not None:
        report.save(args.json)


if __name__ == "__main__":
    main()
