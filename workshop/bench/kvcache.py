"""What a KV cache in 8 bits changes in what a model says, beside what bfloat16 changes anyway.

    texts      the float32 engine goes on from random tokens, drawing at temperature 1: what this model might say
    answers    each engine says how likely it finds each token of each text, and which token it finds likeliest

Every engine reads the same texts, so one token that comes out otherwise does not make all behind it differ. What such a
cache does to the time of a step is measured by `ablate --features int8-cache`.

vLLM: none (its documentation sends to lm_eval)
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np

from folovllm import LLM
from folovllm.bench.options import add_number, add_output, add_source, source
from folovllm.bench.report import Line, Report, Row
from folovllm.bench.workload import BenchModel, progress_bar, random_prompts, vocab_size
from folovllm.sampling_params import SamplingParams

COLUMNS = ["dtype", "kv_cache", "against", "token_bytes", "tokens", "mean_error", "largest_error", "same_likeliest"]
START = 8  # random tokens that a text begins with, about which nothing is asked
SEQUENCES = 8


class Kind(NamedTuple):
    dtype: str
    kv_cache_dtype: str = "auto"


PAIRS = [
    (Kind("bfloat16"), Kind("float32")),
    *((Kind(dtype, kind), Kind(dtype)) for dtype in ("bfloat16", "float32") for kind in ("fp8", "int8")),
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
    add_number(command, "--texts", default=16, help="texts that each engine reads")
    add_number(command, "--length", default=128, help="tokens of each of them", least=START + 1)
    add_output(command)


def run(args: argparse.Namespace) -> Report:
    texts, length = args.texts, args.length
    with source(args) as model:
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
    lines: list[Line] = [(_row(kind, found[kind], against, found[against]), {}) for kind, against in pairs]
    return Report.of(args, f"What a KV cache in 8 bits changes, {model.label}", COLUMNS, lines, notes)


def _llm(model: BenchModel, kind: Kind, length: int) -> LLM:
    return LLM(
        model.path, dtype=kind.dtype, device="cpu", load_format=model.load_format, skip_tokenizer_init=True,
        max_model_len=length + 1, max_num_seqs=SEQUENCES, num_kv_blocks=SEQUENCES * -(-(length + 1) // 16) + 8,
        kv_cache_dtype=kind.kv_cache_dtype,
    )  # fmt: skip


def _write(model: BenchModel, texts: int, length: int) -> list[list[int]]:
    starts = random_prompts([START] * texts, vocab_size(model))
    wanted: dict[str, Any] = {"max_tokens": length - START, "ignore_eos": True, "detokenize": False}
    params = [SamplingParams(seed=number, **wanted) for number in range(texts)]
    outputs = _llm(model, Kind("float32"), length).generate(starts, params, use_tqdm=False)
    return [start + output.outputs[0].token_ids for start, output in zip(starts, outputs, strict=True)]


def _ask(model: BenchModel, kind: Kind, texts: list[list[int]]) -> Answers:
    llm = _llm(model, kind, len(texts[0]))
    asked = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1, ignore_eos=True, detokenize=False)
    logprobs, likeliest = [], []
    for text, output in zip(texts, llm.generate(texts, asked, use_tqdm=False), strict=True):
        for token, entry in zip(text[START:], (output.prompt_logprobs or [])[START:], strict=True):
            assert entry is not None, "only a prompt's first token has none"
            logprobs.append(entry[token].logprob)
            likeliest.append(min(entry, key=lambda one: (entry[one].rank, one)))
    cache = llm.engine.runner.kv_cache
    return Answers(np.array(logprobs), np.array(likeliest), cache.num_bytes // (cache.num_blocks * cache.block_size))


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
