"""Several requests at once: tokens per second in prefill, in decode and over all.

vLLM: benchmarks/throughput.py
"""

from __future__ import annotations

import argparse
from typing import Any

from folovllm.bench.options import add_common, add_lengths, add_model, source
from folovllm.bench.report import Report, Samples, medians
from folovllm.bench.runs import FoloVLLM, Run, Work, rounds_of
from folovllm.bench.workload import random_prompts, vocab_size
from folovllm.config import CacheConfig, ModelConfig, ParallelConfig
from folovllm.entrypoints.cli.parser import add_fields
from folovllm.model_loader.quant_scheme import ONLINE

COLUMNS = [
    "dtype", "requests", "prompt_tokens", "output_tokens", "seconds", "prefill_tokens_per_s", "decode_tokens_per_s",
    "output_tokens_per_s",
]  # fmt: skip


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Several requests at once: tokens per second in prefill, in decode and over all."
    add_model(command)
    text = "round folovllm's weights (default: as the checkpoint has them)"
    command.add_argument("--quantization", choices=list(ONLINE), help=text)
    add_fields(command, ModelConfig, "quantize_head", "model_impl")
    add_fields(command, ParallelConfig, "tensor_parallel_size")
    add_lengths(command, 4, 32, 32)
    add_common(command)


def run(args: argparse.Namespace) -> Report:
    with source(args) as model:
        longest = args.input_len + args.output_len
        engine, vocab = FoloVLLM(model, args.dtype, args.device, longest, **engine_options(args)), vocab_size(model)
        runs = rounds_of(engine, args.rounds, lambda number: work(args, vocab, number))
    notes = [f"{medians(args.rounds, 'round')} after a warm-up."]
    return Report.of(args, f"Throughput, {model.label}", COLUMNS, [(facts(args), samples(args, runs))], notes)


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """Room for these requests, as vLLM's peer has it, and one block more for each that runs ahead. In a larger cache
    each round would take blocks that none has used before, and the first use of memory is dear."""
    blocks = args.num_requests * (-(-(args.input_len + args.output_len) // CacheConfig().block_size) + 1)
    names = ("quantization", "quantize_head", "model_impl", "tensor_parallel_size")
    return {"num_kv_blocks": blocks, **{name: getattr(args, name) for name in names if name in args}}


def work(args: argparse.Namespace, vocab: int, number: int) -> Work:
    """A fresh set in each round, so that nothing can be remembered. The warm-up takes as many requests: what they use
    of buffers and blocks is then used for the first time before the clock runs."""
    count = args.num_requests
    return random_prompts([args.input_len] * count, vocab, f"{args.seed} {number}"), [args.output_len] * count


def facts(args: argparse.Namespace) -> dict[str, Any]:
    rounded = args.quantization and args.quantization + (
        ", head in 8 bits" if getattr(args, "quantize_head", False) else ""
    )
    sizes = {"requests": args.num_requests, "prompt_tokens": args.input_len, "output_tokens": args.output_len}
    return {"dtype": rounded or args.dtype, **sizes}


def samples(args: argparse.Namespace, runs: list[Run]) -> Samples:
    count = args.num_requests
    return {
        "seconds": [run.seconds for run in runs],
        "prefill_tokens_per_s": [count * args.input_len / run.prefill_seconds for run in runs],
        "decode_tokens_per_s": [run.decode_tokens / run.decode_seconds for run in runs],
        "output_tokens_per_s": [count * args.output_len / run.seconds for run in runs],
    }
