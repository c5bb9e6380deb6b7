"""Which replica should a request go to? The same shared-prefix load under each router, two replicas on this machine.

    python -m workshop.replicas_bench --json replicas-routers.json      # needs the extras serve and ray

`groups` prefixes of `prefix_len` tokens; each request is one of them, at random, and a short end of its own. The caches
are such that one of them does not hold all prefixes, and both merged do. That is where routing matters: in a
cache with room for everything, every replica has every prefix after a while, whatever the router does.

The routers take turns in one run, each round with a cache salt of its own, so that no round finds anything that an
earlier one left. A turn asks once for each prefix before it is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
import uuid
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from folovllm.bench.report import Report, Row
from folovllm.engine.stats import EngineStats
from folovllm.sampling_params import SamplingParams
from folovllm.serving.openai.live import merged
from folovllm.serving.replicas.client import ReplicatedLLM
from folovllm.serving.replicas.launch import make_replicas
from folovllm.serving.replicas.options import ReplicaOptions
from folovllm.serving.routing import ROUTERS, Router

COLUMNS = ["router", "hit_rate", "ttft_p50_ms", "ttft_p95_ms", "requests_per_s", "least_share"]
NAMES = ("round-robin", "least-loaded", "prefix-affinity")


def use(llm: ReplicatedLLM, router: Router) -> None:
    for name in llm.router.replicas:
        router.add_replica(name)
    llm.router = router


async def ask(llm: ReplicatedLLM, prompt: list[int], salt: str, output_len: int) -> float:
    """Seconds to the first token; returns after the last."""
    began, first = time.perf_counter(), 0.0
    params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
    async for _ in llm.generate({"prompt_token_ids": prompt, "cache_salt": salt}, params):
        first = first or time.perf_counter() - began
    return first


async def stats_of(llm: ReplicatedLLM) -> tuple[EngineStats, list[int]]:
    snapshots = await llm.snapshots()
    return merged(snapshots)[0], [each.stats.prefix_cache_queries for each in snapshots]


async def turn(llm: ReplicatedLLM, prompts: list[list[int]], warm: list[list[int]], args: Any) -> Row:
    salt = uuid.uuid4().hex
    for prompt in warm:
        await ask(llm, prompt, salt, 1)
    before, queries_before = await stats_of(llm)
    left, times = list(reversed(prompts)), []

    async def client() -> None:
        while left:
            times.append(await ask(llm, left.pop(), salt, args.output_len))

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(args.clients)))
    seconds = time.perf_counter() - began
    after, queries = await stats_of(llm)
    asked = after.prefix_cache_queries - before.prefix_cache_queries
    shares = [(new - old) / asked for new, old in zip(queries, queries_before, strict=True)]
    ranked = sorted(times)
    return {
        "hit_rate": (after.prefix_cache_hits - before.prefix_cache_hits) / asked,
        "ttft_p50_ms": statistics.median(times) * 1e3,
        "ttft_p95_ms": ranked[int(0.95 * (len(ranked) - 1))] * 1e3,
        "requests_per_s": len(times) / seconds,
        "least_share": min(shares),
    }


async def measure(llm: ReplicatedLLM, args: Any, console: Console) -> dict[str, list[Row]]:
    rng = random.Random(args.seed)
    found: dict[str, list[Row]] = {name: [] for name in NAMES}
    for _ in track(range(args.rounds), "rounds", console=console):
        prefixes = [rng.choices(range(10, 1000), k=args.prefix_len) for _ in range(args.groups)]
        prompts = [
            rng.choice(prefixes) + rng.choices(range(10, 1000), k=args.end_len) for _ in range(args.num_requests)
        ]
        for name in NAMES:
            use(llm, ROUTERS[name]())
            found[name].append(await turn(llm, prompts, [[*prefix, 5] for prefix in prefixes], args))
    await llm.shutdown()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {
        "replicas": 2, "groups": 16, "prefix_len": 512, "end_len": 16, "output_len": 8, "clients": 6,
        "num_requests": 96, "num_kv_blocks": 400, "rounds": 5, "seed": 0,
    }.items():  # fmt: skip
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=default, help="default: %(default)s")
    parser.add_argument("--json", type=Path, help="write the result here")
    args = parser.parse_args()
    console = Console(stderr=True)
    with console.status("starting the replicas …"):
        llm = make_replicas("embedded", {"num_kv_blocks": args.num_kv_blocks}, ReplicaOptions(replicas=args.replicas))
    found = asyncio.run(measure(llm, args, console))
    rows: list[Row] = []
    for name in NAMES:
        middle = {key: round(statistics.median(row[key] for row in found[name]), 3) for key in COLUMNS[1:]}
        rows.append({"router": name, **middle})
    fixed = {key: value for key, value in vars(args).items() if key != "json"}
    title = (
        f"{args.replicas} replicas, {args.groups} prefixes of {args.prefix_len} tokens, caches of "
        f"{args.num_kv_blocks * 16:,} tokens each, {args.clients} clients"
    )
    notes = [
        f"Medians of {args.rounds} rounds, in which the routers took turns; TTFT as the front sees it.",
        "least_share: of all prompt tokens, those that went to the replica which got fewer.",
    ]
    samples = [{key: [row[key] for row in found[name]] for key in COLUMNS[1:]} for name in NAMES]
    command = "python -m workshop.replicas_bench"
    report = Report(
        "replicas-routers", title, command, COLUMNS, rows, notes, details=fixed, samples=samples, seed=args.seed
    )
    report.show(Console())
    if args.json is not None:
        report.save(args.json)


if __name__ == "__main__":
    main()
