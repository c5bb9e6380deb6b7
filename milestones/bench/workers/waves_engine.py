"""One milestone's engine, driven step by step, so that each token can be timed: a file for run.py.

Only that milestone's tree is on the path, nothing of `milestones` is imported, and of the engine only what every
milestone from m1 on has is used (statistics, and what was cached, where there is any).
"""

from __future__ import annotations

import gc
import time
from importlib import import_module
from pathlib import Path
from typing import Any

NEEDS = ("folovllm",)


class Engine:
    """The milestone's LLM, made with `options`. Raises RuntimeError: folovllm is not that of `tree`."""

    def __init__(self, tree: str, options: dict[str, Any]) -> None:
        folovllm: Any = import_module("folovllm")
        found = Path(folovllm.__file__).resolve()
        if not found.is_relative_to(Path(tree).resolve()):
            raise RuntimeError(f"folovllm was loaded from {found}, not from {tree}")
        self.engine = folovllm.LLM(**options).engine
        self.params, self.version = folovllm.SamplingParams, getattr(folovllm, "__version__", "")
        self.runs = 0

    def generate(self, waves: list[dict[str, Any]], enough: int | None) -> dict[str, Any]:
        """Requests in waves (see play.py), greedy: the time of each token. The clock stops while statistics are
        read."""
        self.runs += 1
        engine, wanted = self.engine, dict[str, int]()
        arrivals: list[float] = []
        times: dict[str, list[float]] = {}
        outputs: dict[str, Any] = {}
        peak: dict[str, int] = {}

        def have(count: int) -> bool:
            return all(len(times[name]) >= min(count, length) for name, length in wanted.items())

        gc.collect()  # here, and not between two tokens
        waiting, start = list(waves), time.perf_counter()
        while waiting or engine.has_unfinished_requests():
            while waiting and have(waiting[0]["after"]):
                wave = waiting.pop(0)
                for prompt, length in zip(wave["prompts"], wave["max_tokens"], strict=True):
                    name = f"play{self.runs}-{len(wanted)}"
                    params = self.params(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False)
                    wanted[name], times[name] = length, []
                    arrivals.append(time.perf_counter() - start)
                    engine.add_request(name, prompt, params)
            changed = engine.step()
            now = time.perf_counter()
            for output in changed:
                outputs[output.request_id] = output
                came = times[output.request_id]
                came += [now - start] * (len(output.outputs[0].token_ids) - len(came))
            if enough is not None and not waiting and have(enough):
                break
            before_look = time.perf_counter()
            peak = higher(peak, engine)
            start += time.perf_counter() - before_look
        seconds = time.perf_counter() - start
        for name, length in wanted.items():
            if len(times[name]) < length:
                engine.abort_request(name)
        while engine.has_unfinished_requests():  # a step that was under way
            engine.step()
        return {
            "seconds": seconds,
            "arrivals": arrivals,
            "times": list(times.values()),
            "tokens": [list(outputs[name].outputs[0].token_ids) for name in wanted],
            "cached": [getattr(outputs[name], "num_cached_tokens", None) for name in wanted],
            "peak": peak,
        }


def higher(peak: dict[str, int], engine: Any) -> dict[str, int]:
    """`peak` with this moment in it: the most sequences at once, and the cache when most of it was used."""
    if not hasattr(engine, "stats"):
        return peak
    stats = engine.stats()
    fuller = stats.kv_tokens_used > peak.get("kv_used_tokens", -1)
    cache = {"kv_reserved_tokens": stats.kv_tokens_reserved, "kv_used_tokens": stats.kv_tokens_used}
    return peak | {"running_seqs": max(stats.running_seqs, peak.get("running_seqs", 0))} | (cache if fuller else {})
