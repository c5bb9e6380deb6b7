"""transformers' modelling code in our engine, beside transformers' own continuous batching, in CPU seconds.

    OMP_NUM_THREADS=1 python -m workshop.transformers_speed --json docs/benchmarks/data/transformers-speed.json

Both run in this process, in turn, on the same random weights. CPU seconds of all threads count, so that other programs
on the machine change little; a thread that spins would count, and neither has one here.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers

from folovllm import LLM, SamplingParams
from folovllm.bench.report import Report, Row
from folovllm.bench.workload import random_prompts, shape_config

SHAPES = ("qwen3-tiny", "qwen3-mini")
REQUESTS, INPUT_LEN, OUTPUT_LEN, ROUNDS = 16, 64, 32, 5


def ways(folder: str) -> dict[str, Callable[[list[list[int]]], list[list[int]]]]:
    llm = LLM(
        folder, model_impl="transformers", dtype="float32", device="cpu", max_model_len=128, skip_tokenizer_init=True,
        enable_prefix_caching=False,
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=OUTPUT_LEN, ignore_eos=True, detokenize=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="paged|sdpa").float().eval()
    greedy = transformers.GenerationConfig(
        do_sample=False, max_new_tokens=OUTPUT_LEN, eos_token_id=-1, pad_token_id=0, use_cuda_graph=False
    )
    cache = transformers.ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=256)

    def ours(prompts: list[list[int]]) -> list[list[int]]:
        return [list(each.outputs[0].token_ids) for each in llm.generate(prompts, params, use_tqdm=False)]

    def theirs(prompts: list[list[int]]) -> list[list[int]]:
        found = model.generate_batch(
            inputs=prompts, generation_config=greedy, continuous_batching_config=cache, persistent_manager=True,
            warmup=False,
        )  # fmt: skip
        in_order = sorted(found.values(), key=lambda each: prompts.index(each.prompt_ids))
        return [each.generated_tokens for each in in_order]

    return {"model_impl='transformers'": ours, "transformers' continuous batching": theirs}


def measure(shape: str) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        config = shape_config(shape)
        transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
        runs = ways(folder)
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for number in range(ROUNDS + 1):  # the first warms up
            prompts = random_prompts([INPUT_LEN] * REQUESTS, config.vocab_size, number)
            for name, run in runs.items():
                began = time.process_time()
                tokens = run(prompts)
                taken[name].append(time.process_time() - began)
                if [len(each) for each in tokens] != [OUTPUT_LEN] * REQUESTS:
                    raise RuntimeError(f"{name} gave {[len(each) for each in tokens]} tokens")
    seconds = {name: statistics.median(each[1:]) for name, each in taken.items()}
    base = seconds["transformers' continuous batching"]
    return [
        {"shape": shape, "engine": name, "cpu_seconds": own, "tokens_per_cpu_s": REQUESTS * OUTPUT_LEN / own,
         "speedup": base / own}
        for name, own in seconds.items()
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    rows = [row for shape in SHAPES for row in measure(shape)]
    notes = [f"{REQUESTS} requests of {INPUT_LEN} tokens, {OUTPUT_LEN} new ones each. Medians of {ROUNDS} rounds."]
    command = "python -m workshop.transformers_speed " + " ".join(sys.argv[1:])
    title = "transformers' code in our engine, and its own continuous batching, float32"
    report = Report("transformers-speed", title, command, list(rows[0]), rows, notes)
    print(report.to_json())
    if args.json is not None:
        report.save(args.json)


if __name__ == "__main__":
    main()
