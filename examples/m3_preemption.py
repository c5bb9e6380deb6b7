"""A cache too small for its load: who is preempted, how, and that nobody's tokens change.

Run it: python examples/m3_preemption.py
"""

from __future__ import annotations

import _tree  # noqa: F401 - folovllm is this tree's

from folovllm import LLM, SamplingParams
from folovllm.request import SequenceStatus

PROMPTS = ["Once upon a time", "从前", "What is a KV cache?", "One day a little bird", "什么是分页注意力？"]
PARAMS = SamplingParams(temperature=0.8, seed=1, max_tokens=48, ignore_eos=True)
MARKS = {SequenceStatus.RUNNING: "█", SequenceStatus.WAITING: "·", SequenceStatus.SWAPPED: "░"}


def run(mode: str, num_kv_blocks: int) -> list[list[int]]:
    """Serve all prompts with so many blocks of 8 tokens; draw a lane for each; return their tokens."""
    settings = {"block_size": 8, "num_kv_blocks": num_kv_blocks, "preemption_mode": mode, "max_model_len": 160}
    engine = LLM(dtype="float32", **settings).engine  # in bfloat16, keys computed again may be rounded otherwise
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(str(number), prompt, PARAMS)
    requests = list(engine.scheduler.waiting)
    lanes = ["" for _ in requests]
    outputs: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            outputs[output.request_id] = output.outputs[0].token_ids
        for number, request in enumerate(requests):
            lanes[number] += MARKS.get(request.get_seqs()[0].status, " ")
    print(f"{mode}, {num_kv_blocks} blocks: {engine.stats().preemptions} preemptions in {len(lanes[0])} steps")
    for lane in lanes:
        print(f"  {lane.rstrip()}")
    return [outputs[str(number)] for number in range(len(PROMPTS))]


print("█ computes   · waits (its blocks are freed, to be computed again)   ░ swapped out\n")
roomy = run("auto", 200)
same = [run(mode, 20) == roomy for mode in ("recompute", "swap")]
print(f"\nthe same tokens as with room for all: recompute {same[0]}, swap {same[1]}")
