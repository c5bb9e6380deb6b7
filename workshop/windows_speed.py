"""Decoding with windows and a soft-cap: torch's operators and our compiled kernels, in CPU seconds of a whole step.

    OMP_NUM_THREADS=1 python -m workshop.windows_speed --json docs/benchmarks/data/windows-speed.json

Gemma 2's layers: every other one has a window, all have a soft-cap. Mistral's have a window each. Both engines are in
this process and take their steps in turn.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers

from folovllm import LLM, SamplingParams
from folovllm.bench.report import Report, Row
from folovllm.bench.workload import random_prompts

WINDOW, SEQUENCES, STEPS, CONTEXTS, VOCAB = 256, 4, 24, (1024, 4096), 2048
SHAPE = {
    "vocab_size": VOCAB, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 8192,
    "sliding_window": WINDOW, "eos_token_id": None, "bos_token_id": None, "pad_token_id": None,
}  # fmt: skip


def step_seconds(folder: str, context: int) -> dict[str, float]:
    """By backend, the median of the steps in which all sequences decode."""
    taken: dict[str, list[float]] = {"paged_torch": [], "cpu": []}
    engines = []
    for name in taken:
        llm = LLM(
            folder, attention_backend=name, dtype="float32", device="cpu", max_model_len=context + 2 * STEPS,
            skip_tokenizer_init=True, enable_prefix_caching=False, num_kv_blocks=SEQUENCES * (context // 16 + 4) + 1,
        )  # fmt: skip
        params = SamplingParams(temperature=0, max_tokens=STEPS + SEQUENCES, ignore_eos=True, detokenize=False)
        for number, prompt in enumerate(random_prompts([context] * SEQUENCES, VOCAB, 0)):
            llm.engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
        answered: set[str] = set()
        while len(answered) < SEQUENCES:
            answered |= {output.request_id for output in llm.engine.step() if output.outputs[0].token_ids}
        engines.append((name, llm.engine))
    for _ in range(STEPS - SEQUENCES):
        for name, engine in engines:
            began = time.process_time()
            engine.step()
            taken[name].append(time.process_time() - began)
    return {name: statistics.median(each) for name, each in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    rows: list[Row] = []
    for model_type in ("gemma2", "mistral"):
        with tempfile.TemporaryDirectory() as folder:
            config = transformers.AutoConfig.for_model(model_type, **SHAPE)
            transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
            for context in CONTEXTS:
                found = step_seconds(folder, context)
                rows += [
                    {"model_type": model_type, "context": context, "backend": name, "step_cpu_ms": seconds * 1e3,
                     "speedup": found["paged_torch"] / seconds}
                    for name, seconds in found.items()
                ]  # fmt: skip
    notes = [f"8 layers, windows of {WINDOW}, {SEQUENCES} sequences, medians of {STEPS - SEQUENCES} steps in turn."]
    command = "python -m workshop.windows_speed " + " ".join(sys.argv[1:])
    report = Report("windows-speed", "A decode step with windows, float32", command, list(rows[0]), rows, notes)
    print(report.to_json())
    if args.json is not None:
        report.save(args.json)


if __name__ == "__main__":
    main()
