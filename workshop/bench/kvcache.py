"""What a KV cache in 8 bits changes in what a model says, beside what bfloat16 changes anyway. No time is measured.

    texts      the float32 engine goes on from random tokens, drawing at temperature 1: what this model might say
    answers    each engine says how likely it finds each token of each text, and which token it finds likeliest

Every engine reads the same texts, so one token that comes out otherwise does not make all behind it differ.

vLLM: none (its documentation sends to lm_eval)
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from folovllm.bench.options import add_output, add_source, command_line
from folovllm.bench.report import Report, Row
from folovllm.bench.workload import BenchModel, bench_model, progress_bar, random_prompts, require_at_least, vocab_size
from folovllm.engine.defaults import config_for_llm
from folovllm.engine.llm_engine import LLMEngine
from folovllm.outputs import RequestOutput
from folovllm.sampling_params import SamplingParams

COLUMNS = ["dtype", "kv_cache", "against", "token_bytes", "tokens", "mean_error", "largest_error", "same_likeliest"]
START = 8  # random tokens that a text begins with, about which nothing is asked


class Kind(NamedTuple):
    dtype: str
    kv_cache_dtype: str


PAIRS = [
    (Kind("bfloat16", "auto"), Kind("float32", "auto")),
    (Kind("bfloat16", "fp8"), Kind("bfloat16", "auto")),
    (Kind("float32", "fp8"), Kind("float32", "auto")),
]


class Answers(NamedTuple):
    logprobs: np.ndarray
    """[tokens] float64, of the texts' own tokens."""
    likeliest: np.ndarray
    """[tokens] the token that was found likeliest there."""
    token_bytes: int


def add_arguments(command: argparse.ArgumentParser) -> None:
    text = "What kv_cache_dtype='fp8' changes in a model's log-probabilities and likeliest tokens, on a CPU."
    command.description = text
    add_source(command)
    command.add_argument("--texts", type=int, metavar="N", default=16, help="texts that each engine reads")
    command.add_argument("--length", type=int, metavar="N", default=128, help="tokens of each of them")
    add_output(command)


def from_args(args: argparse.Namespace) -> Report:
    with bench_model(args.model, args.shape) as model:
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


def _engine(model: BenchModel, kind: Kind, length: int) -> LLMEngine:
    config = config_for_llm(
        model.path,
        dtype=kind.dtype,
        device="cpu",
        load_format=model.load_format,
        skip_tokenizer_init=True,
        max_model_len=length + 1,
        max_num_seqs=8,
        num_kv_blocks=8 * -(-(length + 1) // 16) + 8,
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
    token_bytes = engine.runner.kv_cache.num_bytes
    token_bytes //= engine.runner.kv_cache.num_blocks * engine.runner.kv_cache.block_size
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
