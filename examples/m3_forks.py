"""Four continuations of one prompt: the prompt's blocks are computed once and shared, and copied where they part.

Run it: python examples/m3_forks.py
"""

from __future__ import annotations

import _tree  # noqa: F401 - folovllm is this tree's

from folovllm import LLM, SamplingParams

engine = LLM(block_size=8, num_kv_blocks=64, max_model_len=256).engine
params = SamplingParams(n=4, temperature=0.9, seed=3, max_tokens=20, ignore_eos=True)
engine.add_request("story", "Once upon a time there was a little fox who", params)

outputs = []
for step in range(1, 21):
    outputs = engine.step() or outputs
    request = next(iter(engine.scheduler.running), None)
    if request is None or step not in (1, 2, 8, 19):
        continue
    print(f"after step {step}")
    pool = engine.scheduler.kv.pool
    for seq in request.get_seqs():
        # A block that several tables name carries the number of its references.
        table = " ".join(f"{b}×{pool.refs(b)}" if pool.refs(b) > 1 else str(b) for b in seq.block_ids)
        print(f"  sequence {seq.index}: {seq.get_len()} tokens in blocks {table}")
    stats = engine.stats()
    alone = sum(len(seq.block_ids) for seq in request.get_seqs())
    print(f"  {stats.kv_blocks_used} blocks in use, {stats.kv_blocks_shared} shared; without sharing {alone}\n")

for completion in outputs[0].outputs:
    print(f"[{completion.index}] {completion.text!r}")
print(f"blocks in use at the end: {engine.stats().kv_blocks_used}")
