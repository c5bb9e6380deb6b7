"""Several requests: tokens per second in prefill, in decode and over all.

The peer runs them one after the other and, where asked, in batches. Which of the two is the fair comparison
depends on what the engine does with several requests, so both rows are shown.
"""

from __future__ import annotations

import gc
import statistics

from folovllm.bench.peers import Contestant, FoloVLLM, HuggingFace, Run, load_hf_model
from folovllm.bench.report import Report
from folovllm.bench.workload import BenchModel, progress_bar, random_prompts, require_at_least

COLUMNS = [
    "engine",
    "dtype",
    "requests",
    "batch",
    "prompt_tokens",
    "output_tokens",
    "seconds",
    "prefill_tokens_per_s",
    "decode_tokens_per_s",
    "output_tokens_per_s",
    "speedup",
]


def run(
    model: BenchModel,
    *,
    command: str,
    dtype: str,
    peer: str | None = None,
    device: str | None = None,
    num_requests: int = 4,
    input_len: int = 32,
    output_len: int = 32,
    peer_batch_size: int = 1,
    rounds: int = 3,
) -> Report:
    require_at_least(1, num_requests=num_requests, input_len=input_len, rounds=rounds, peer_batch_size=peer_batch_size)
    require_at_least(2, output_len=output_len)
    batch_sizes = sorted({1, min(peer_batch_size, num_requests)}) if peer == "hf" else []
    with progress_bar(1 + bool(batch_sizes) + (rounds + 1) * (1 + len(batch_sizes))) as tick:
        tick("loading folovllm")
        ours = FoloVLLM(model, dtype, device, input_len + output_len)
        contestants: list[tuple[int | None, Contestant]] = [(None, ours)]
        if batch_sizes:
            tick("loading hf")
            hf_model = load_hf_model(model, dtype, device)
            contestants += [(size, HuggingFace(hf_model, size)) for size in batch_sizes]
        vocab_size = ours.engine.runner.vocab_size
        runs: list[list[Run]] = [[] for _ in contestants]
        for number in range(rounds + 1):
            # A fresh set in each round, so that nothing can be remembered; one request is enough to warm up.
            prompts = random_prompts(num_requests if number else 1, input_len, vocab_size, seed=number)
            for (size, contestant), results in zip(contestants, runs, strict=True):
                label = contestant.name + (f" batch {size}" if size else "")
                tick(f"round {number}/{rounds}: {label}" if number else f"warm-up: {label}")
                gc.collect()
                result = contestant.run(prompts, output_len)
                if number:
                    results.append(result)
    base = statistics.median(result.seconds for result in runs[0])
    rows = []
    for (size, contestant), results in zip(contestants, runs, strict=True):
        seconds = statistics.median(result.seconds for result in results)
        prompt_tokens = num_requests * input_len
        rows.append(
            {
                "engine": contestant.name,
                "dtype": dtype,
                "requests": num_requests,
                "batch": size,
                "prompt_tokens": input_len,
                "output_tokens": output_len,
                "seconds": seconds,
                "prefill_tokens_per_s": statistics.median(prompt_tokens / r.prefill_seconds for r in results),
                "decode_tokens_per_s": statistics.median(r.decode_tokens / r.decode_seconds for r in results),
                "output_tokens_per_s": num_requests * output_len / seconds,
                "speedup": seconds / base if size else None,
            }
        )
    notes = [
        f"Medians of {rounds} rounds after a warm-up, one process, in turn.",
        "speedup: this row's seconds over folovllm's.",
        "batch: prompts that the peer takes at a time; folovllm schedules by itself.",
    ]
    return Report("throughput", f"Throughput, {model.label}", command, COLUMNS, rows, notes)
