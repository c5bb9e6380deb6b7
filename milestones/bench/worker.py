"""One milestone's engine in a process of its own: the other end of the pipe of `python -m milestones bench`.

    stdin   {"tree": ..., "engine": {...}}            stdout   {"ready": true}
            {"prompts": [...], "max_tokens": [...]}            {"seconds": ..., "tokens": [...], ...}
            {"waves": [{...}, ...], "enough": ...}             {"seconds": ..., "times": [[...], ...], ...}

One line of JSON each. Only that milestone's tree is on the path, nothing of `milestones` is imported, and
of the engine only what every milestone from m1 on has is used (statistics, and what was cached, where there is any).
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any


class Engine:
    """The milestone's LLM, driven step by step, so that each request's first token can be timed."""

    def __init__(self, tree: str, options: dict[str, Any]) -> None:
        import folovllm

        found = Path(folovllm.__file__).resolve()
        if not found.is_relative_to(Path(tree).resolve()):
            raise RuntimeError(f"folovllm was loaded from {found}, not from {tree}")
        self.engine = folovllm.LLM(**options).engine
        self.params = folovllm.SamplingParams
        self.runs = 0

    def run(self, prompts: list[list[int]], max_tokens: list[int]) -> dict[str, Any]:
        """All requests at once, greedy, to their full lengths. The clock stands while statistics are read."""
        self.runs += 1
        engine, seconds = self.engine, 0.0
        names = [f"run{self.runs}-{number}" for number in range(len(prompts))]
        outputs: dict[str, Any] = {}
        first: dict[str, float] = {}
        peak: dict[str, int] = {}
        start = time.perf_counter()
        for name, prompt, length in zip(names, prompts, max_tokens, strict=True):
            params = self.params(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False)
            engine.add_request(name, prompt, params)
        while engine.has_unfinished_requests():
            changed = engine.step()
            seconds += time.perf_counter() - start
            for output in changed:
                outputs[output.request_id] = output
                first.setdefault(output.request_id, seconds)
            peak = higher(peak, engine)
            start = time.perf_counter()
        return {
            "seconds": seconds,
            "ttft": [first[name] for name in names],
            "tokens": [list(outputs[name].outputs[0].token_ids) for name in names],
            **peak,
        }

    def play(self, waves: list[dict[str, Any]], enough: int | None) -> dict[str, Any]:
        """Requests in waves (see timeline.py), greedy: the time of each token. The clock never stands."""
        self.runs += 1
        engine, wanted = self.engine, dict[str, int]()
        arrivals: list[float] = []
        times: dict[str, list[float]] = {}
        outputs: dict[str, Any] = {}

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
            seconds = time.perf_counter() - start
            for output in changed:
                outputs[output.request_id] = output
                came = times[output.request_id]
                came += [seconds] * (len(output.outputs[0].token_ids) - len(came))
            if enough is not None and not waiting and have(enough):
                break
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
        }


def higher(peak: dict[str, int], engine: Any) -> dict[str, int]:
    """`peak` with this moment in it: the most sequences at once, and the cache when most of it was used."""
    if not hasattr(engine, "stats"):
        return peak
    stats = engine.stats()
    fuller = stats.kv_tokens_used > peak.get("kv_used_tokens", -1)
    cache = {"kv_reserved_tokens": stats.kv_tokens_reserved, "kv_used_tokens": stats.kv_tokens_used}
    return peak | {"running_seqs": max(stats.running_seqs, peak.get("running_seqs", 0))} | (cache if fuller else {})


def main() -> None:
    # What a library prints must not end up between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    engine: Engine | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if engine is None:
                engine = Engine(request["tree"], request["engine"])
                answer: dict[str, Any] = {"ready": True}
            elif "waves" in request:
                answer = engine.play(request["waves"], request["enough"])
            else:
                answer = engine.run(request["prompts"], request["max_tokens"])
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
