"""What a KV cache in 8 bits changes in what a model says, beside what bfloat16 changes anyway; or, behind a long
context, what it does to the time of a decode step.

    texts      the float32 engine goes on from random tokens, drawing at temperature 1: what this model might say
    answers    each engine says how likely it finds each token of each text, and which token it finds likeliest

Every engine reads the same texts, so one token that comes out otherwise does not make all behind it differ. With
--context, engines that keep the same context in each of the ways decode in turn.

vLLM: none (its documentation sends to lm_eval)
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from folovllm.bench.decoding import WARM_UP_STEPS, DecodingBatch
from folovllm.bench.options import add_output, add_rounds, add_source, command_line
from folovllm.bench.report import Report, Row, by_round, medians
from folovllm.bench.workload import BenchModel, bench_model, progress_bar, random_prompts, require_at_least, vocab_size
from folovllm.engine.defaults import config_for_llm
from folovllm.engine.llm_engine import LLMEngine
from folovllm.outputs import RequestOutput
from folovllm.sampling_params import SamplingParams

COLUMNS = ["dtype", "kv_cache", "against", "token_bytes", "tokens", "mean_error", "largest_error", "same_likeliest"]
TIME_COLUMNS = ["dtype", "kv_cache", "context", "token_bytes", "kv_gb", "step_ms", "speed"]
KINDS = ("auto", "fp8", "int8")
START = 8  # random tokens that a text begins with, about which nothing is asked


class Kind(NamedTuple):
    dtype: str
    kv_cache_dtype: str


PAIRS = [
    (Kind("bfloat16", "auto"), Kind("float32", "auto")),
    *((Kind(dtype, kind), Kind(dtype, "auto")) for dtype in ("bfloat16", "float32") for kind in KINDS[1:]),
]


class Answers(NamedTuple):
    logprobs: np.ndarray
    """[tokens] float64, of the texts' own tokens."""
    likeliest: np.ndarray
    """[tokens] the token that was found likeliest there."""
    token_bytes: int


def add_arguments(command: argparse.ArgumentParser) -> None:
    text = "What kv_cache_dtype='fp8' and 'int8' change in log-probabilities and likeliest tokens, on a CPU."
    command.description = text
    add_source(command)
    command.add_argument("--texts", type=int, metavar="N", default=16, help="texts that each engine reads")
    command.add_argument("--length", type=int, metavar="N", default=128, help="tokens of each of them")
    text = "time decode steps behind so many tokens instead, in bfloat16"
    command.add_argument("--context", type=int, metavar="N", default=0, help=text)
    command.add_argument("--steps", type=int, metavar="N", default=8, help="timed steps of a round")
    add_rounds(command, default=5)
    add_output(command)


def from_args(args: argparse.Namespace) -> Report:
    with bench_model(args.model, args.shape) as model:
        if args.context:
            sizes = {"context": args.context, "steps": args.steps, "rounds": args.rounds}
            return run_times(model, command=command_line(args), **sizes)
        return run(model, command=command_line(args), texts=args.texts, length=args.length)


def run(model: BenchModel, *, command: str, texts: int = 16, length: int = 128) -> Report:
    require_at_least(1, texts=texts)
    require_at_least(START + 1, length=length)
    # Random weights are drawn in the model's dtype: in another one they are another model's.
    pairs = [pair for pair in PAIRS if model.load_format == "auto" or pair[0].dtype == pair[1].dtype]
    kinds = list(dict.fromkeys(kind for pair in pairs for kind in pair))
    with progress_bar(1 + len(kinds)) as tick:
        tick("texts")
        written = _write(model, texts, length)
        found = {}
        for kind in kinds:
            tick(f"{kind.dtype}, KV cache {kind.kv_cache_dtype}")
            found[kind] = _ask(model, kind, written)
    notes = [
        f"{texts} texts of {length} tokens, {START} random ones and what the model itself draws behind them.",
        "error: of the log-probability of a text's token, by its amount; same_likeliest: the share of places at "
        "which both find the same token likeliest, which is the next token of a greedy answer. token_bytes: of keys "
        "and values, in all layers.",
    ]
    rows = [_row(kind, found[kind], against, found[against]) for kind, against in pairs]
    return Report("kvcache", f"What a KV cache in 8 bits changes, {model.label}", command, COLUMNS, rows, notes)


def run_times(model: BenchModel, *, command: str, context: int, steps: int = 8, rounds: int = 5) -> Report:
    """A prompt is computed in each engine; then their rounds of steps follow each other in turn."""
    require_at_least(1, context=context, steps=steps, rounds=rounds)
    longest = context + 2 + WARM_UP_STEPS + rounds * steps
    with progress_bar(len(KINDS) + rounds) as tick:
        engines, batches = [], []
        for kind in KINDS:
            tick(f"KV cache {kind}: computing {context:,} tokens")
            engines.append(_engine(model, Kind("bfloat16", kind), longest, sequences=1))
            batches.append(DecodingBatch(engines[-1], 1, context, vocab_size(model), seed=0))
        seconds: list[list[float]] = [[] for _ in KINDS]
        for number in range(rounds):
            tick(f"round {number + 1}/{rounds}")
            for batch, mine in zip(batches, seconds, strict=True):
                mine += [batch.step() for _ in range(steps)]
    took = [by_round(mine, rounds) for mine in seconds]
    rows: list[Row] = []
    for kind, engine, mine in zip(KINDS, engines, took, strict=True):
        token_bytes = _token_bytes(engine)
        rows.append(
            {
                "dtype": "bfloat16", "kv_cache": kind, "context": context, "token_bytes": token_bytes,
                "kv_gb": token_bytes * context / 1e9, "step_ms": statistics.median(mine),
                "speed": statistics.median(auto / each for auto, each in zip(took[0], mine, strict=True)),
            }
        )  # fmt: skip
    notes = [
        f"{medians(rounds * steps, 'step')} of one sequence, {steps} in each round, the engines in turn.",
        "kv_gb: keys and values that a step reads; speed: auto's time over this one's, the median of the rounds'.",
    ]
    samples = [{"step_ms": mine} for mine in took]
    title = f"Decode behind {context:,} tokens with a KV cache in 8 bits, {model.label}"
    return Report("kvcache", title, command, TIME_COLUMNS, rows, notes, samples=samples)


def _token_bytes(engine: LLMEngine) -> int:
    kv_cache = engine.runner.kv_cache
    return kv_cache.num_bytes // (kv_cache.num_blocks * kv_cache.block_size)


def _engine(model: BenchModel, kind: Kind, length: int, sequences: int = 8) -> LLMEngine:
    config = config_for_llm(
        model.path,
        dtype=kind.dtype,
        device="cpu",
        load_format=model.load_format,
        skip_tokenizer_init=True,
        max_model_len=length + 1,
        max_num_seqs=sequences,
        num_kv_blocks=sequences * -(-(length + 1) // 16) + 8,
        kv_cache_dtype=kind.kv_cache_dtype,
    )
    return LLMEngine(config)


def _serve(engine: LLMEngine, prompts: Sequence[list[int]], params: list[SamplingParams]) -> list[RequestOutput]:
    for number, (prompt, wanted) in enumerate(zip(prompts, params, strict=True)):
        engine.add_request(str(number), prompt, wanted)
    done: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        done |= {output.request_id: output for output in engine.step() if output.finished}
    return [done[str(number)] for number in range(len(prompts))]


def _write(model: BenchModel, texts: int, length: int) -> list[list[int]]:
    starts = random_prompts(texts, START, vocab_size(model))
    params = [
        SamplingParams(seed=number, max_tokens=length - START, ignore_eos=True, detokenize=False)
        for number in range(texts)
    ]
    outputs = _serve(_engine(model, Kind("float32", "auto"), length), starts, params)
    return [start + output.outputs[0].token_ids for start, output in zip(starts, outputs, strict=True)]


def _ask(model: BenchModel, kind: Kind, texts: list[list[int]]) -> Answers:
    engine = _engine(model, kind, len(texts[0]))
    asked = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1, ignore_eos=True, detokenize=False)
    logprobs, likeliest = [], []
    for text, output in zip(texts, _serve(engine, texts, [asked] * len(texts)), strict=True):
        for token, entry in zip(text[START:], (output.prompt_logprobs or [])[START:], strict=True):
            assert entry is not None, "only a prompt's first token has none"
            logprobs.append(entry[token].logprob)
            likeliest.append(min(entry, key=lambda one: (entry[one].rank, one)))
    token_bytes = _token_bytes(engine)
    del engine
    gc.collect()
    return Answers(np.array(logprobs), np.array(likeliest), token_bytes)


def _row(kind: Kind, mine: Answers, against: Kind, theirs: Answers) -> Row:
    error = np.abs(mine.logprobs - theirs.logprobs)
    return {
        "dtype": kind.dtype,
        "kv_cache": kind.kv_cache_dtype,
        "against": f"{against.dtype}, {against.kv_cache_dtype}",
        "token_bytes": mine.token_bytes,
        "tokens": len(error),
        "mean_error": float(error.mean()),
        "largest_error": float(error.max()),
        "same_likeliest": float((mine.likeliest == theirs.likeliest).mean()),
    }
