"""A replica is killed under load: what is lost, how soon its clients know, and when it is back.

    python -m workshop.replicas_kill --json replicas-kill.json      # needs the extras serve and ray

Two replicas on this machine, and as many long requests on each. In the middle one process gets SIGKILL, which no
program can catch. From then on short requests come, one after the other, until the replica is up again.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from folovllm.bench.report import Report, Row
from folovllm.sampling_params import SamplingParams
from folovllm.serving.replicas.client import ReplicaDiedError, ReplicatedLLM
from folovllm.serving.replicas.cluster import RayFleet
from folovllm.serving.replicas.launch import make_replicas
from folovllm.serving.replicas.options import ReplicaOptions

COLUMNS = ["requests", "lost", "finished", "told_ms", "asked_meanwhile", "failed_meanwhile", "back_s"]


async def long_one(llm: ReplicatedLLM, tokens: int, seen: dict[int, int], number: int) -> float | None:
    """When it was lost, in seconds of time.perf_counter(); None where it ended well."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    try:
        async for output in llm.generate("Once upon a time", params):
            seen[number] = len(output.outputs[0].token_ids)
    except ReplicaDiedError:
        return time.perf_counter()
    return None


async def measure(llm: ReplicatedLLM, fleet: RayFleet, args: Any) -> Row:
    await llm.snapshots()
    seen: dict[int, int] = {}
    tasks = [asyncio.create_task(long_one(llm, args.tokens, seen, number)) for number in range(args.requests)]
    while len(seen) < args.requests or min(seen.values()) < args.tokens // 10:
        await asyncio.sleep(0.01)
    victim = (await fleet.call(fleet.names[0], "facts")).pid
    began = time.perf_counter()
    os.kill(victim, signal.SIGKILL)
    asked = failed = 0
    back = 0.0
    was_down = False
    while not back:
        state = llm.replicas()[fleet.names[0]]
        was_down |= state == "down"
        if was_down and state == "up":
            back = time.perf_counter() - began
            break
        await asyncio.sleep(0.1)
        if was_down:
            asked += 1
            try:
                async for _ in llm.generate("A cat", SamplingParams(max_tokens=2)):
                    pass
            except ReplicaDiedError:
                failed += 1
    ends = await asyncio.gather(*tasks)
    lost = [end - began for end in ends if end is not None]
    await llm.shutdown()
    return {
        "requests": args.requests,
        "lost": len(lost),
        "finished": args.requests - len(lost),
        "told_ms": round(max(lost) * 1e3, 1),
        "asked_meanwhile": asked,
        "failed_meanwhile": failed,
        "back_s": round(back, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=12, help="long ones, half on each (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=900, help="of each (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the result here")
    args = parser.parse_args()
    with Console(stderr=True).status("starting the replicas, then killing one …"):
        llm = make_replicas("embedded", {"num_kv_blocks": 2048}, ReplicaOptions(replicas=2, router="least-loaded"))
        assert isinstance(llm.fleet, RayFleet)
        row = asyncio.run(measure(llm, llm.fleet, args))
    notes = [
        "told_ms: from SIGKILL to the last error; back_s: until the front sends it requests again.",
        "asked_meanwhile: short requests that came while it was down.",
    ]
    title = f"one of two replicas killed under {args.requests} requests of {args.tokens} tokens"
    report = Report("replicas-kill", title, "python -m workshop.replicas_kill", COLUMNS, [row], notes)
    report.show(Console())
    if args.json is not None:
        report.save(args.json)


if __name__ == "__main__":
    main()
