"""Show text as it is generated, and measure what a reader feels: the wait for the first token, then the pace.

Run it: python examples/m1_stream.py
"""

from __future__ import annotations

import time
from itertools import pairwise

import _tree  # noqa: F401 - folovllm is this tree's

from folovllm import LLM, SamplingParams

engine = LLM().engine  # LLM waits for whole outputs; the engine underneath works token by token

# Each item holds only what is new. A character of several tokens comes when it is complete, never in halves, so some
# items bring a token and no text.
times = []
start = time.perf_counter()
for delta in engine.generate_stream("从前", SamplingParams(temperature=0.8, seed=5, max_tokens=64)):
    times.append(time.perf_counter())
    print(delta.outputs[0].text, end="", flush=True)
gaps = sorted(later - earlier for earlier, later in pairwise(times))
print(f"\n\n{len(times)} tokens, the first after {(times[0] - start) * 1e3:.0f} ms")
print(f"between tokens: median {gaps[len(gaps) // 2] * 1e3:.1f} ms, longest {gaps[-1] * 1e3:.1f} ms")

# Leaving early is fine: closing the stream aborts the request, and the engine is free for the next one.
stream = engine.generate_stream("Once upon a time", SamplingParams(temperature=0, max_tokens=200))
for count, _ in enumerate(stream, start=1):
    if count == 5:
        break
stream.close()
print(f"left after {count} tokens; unfinished requests: {engine.has_unfinished_requests()}")
