"""What the same bits in any batch cost: steps of an engine with batch_invariant=True against those of one without.

    decode     steps in which every sequence gets one token, at several batch sizes
    prefill    one prompt, in the steps that it takes

Both engines are in this process, with the same weights and prompts, and take turns step by step. So what else happens
on the machine happens to both, and the ratio is the median of the ratios of neighbours.

vLLM: none
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Sequence

from folovllm.bench.options import add_output, add_rounds, add_source, command_line
from folovllm.bench.report import Report, Row
from folovllm.bench.workload import BenchModel, bench_model, progress_bar, random_prompts, require_at_least, vocab_size
from folovllm.engine.defaults import config_for_llm
from folovllm.engine.llm_engine import LLMEngine
from folovllm.sampling_params import SamplingParams

COLUMNS = ["dtype", "work", "batch", "tokens", "pairs", "normal_ms", "invariant_ms", "ratio"]
WARM_UP_STEPS = 2

Pair = tuple[float, float]
"""Seconds of the same work: the engine without the mode, and with it."""


DTYPES = ("float32", "bfloat16")


def add_arguments(command: argparse.ArgumentParser) -> None:
    text = "What batch_invariant=True costs: decode steps and prompts, against an engine without it, on a CPU."
    command.description = text
    add_source(command)
    command.add_argument("--dtypes", choices=DTYPES, nargs="+", default=list(DTYPES), help="one after another")
    command.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 64], help="sequences that decode")
    command.add_argument("--context", type=int, metavar="N", default=128, help="prompt tokens of each of them")
    command.add_argument("--prompt-len", type=int, metavar="N", default=512, help="tokens of a prefill")
    command.add_argument("--steps", type=int, metavar="N", default=8, help="measured steps of a round")
    add_rounds(command)
    add_output(command)


def from_args(args: argparse.Namespace) -> Report:
    names = ("dtypes", "batch_sizes", "context", "prompt_len", "steps", "rounds")
    options = {name: getattr(args, name) for name in names}
    with bench_model(args.model, args.shape) as model:
        return run(model, command=command_line(args), **options)


def run(
    model: BenchModel,
    *,
    command: str,
    dtypes: Sequence[str],
    batch_sizes: Sequence[int],
    context: int = 128,
    prompt_len: int = 512,
    steps: int = 8,
    rounds: int = 3,
) -> Report:
    """A batch is prefilled once, for all its steps; prompts are computed one at a time."""
    for batch in batch_sizes:
        require_at_least(1, batch_sizes=batch)
    require_at_least(1, context=context, prompt_len=prompt_len, steps=steps, rounds=rounds)
    rows: list[Row] = []
    # While a batch's last prompts are computed its first ones decode already; a step holds 256 prompt tokens.
    longest = max(prompt_len, context + WARM_UP_STEPS + rounds * steps + 16 + max(batch_sizes) * context // 128) + 2
    prompts = random_prompts(max(batch_sizes), max(context, prompt_len), vocab_size(model))
    with progress_bar(len(dtypes) * (2 + len(batch_sizes))) as tick:
        for dtype in dtypes:
            tick(f"{dtype}: loading")
            engines = [_engine(model, dtype, max(batch_sizes), longest, batch_invariant=on) for on in (False, True)]
            for batch in batch_sizes:
                tick(f"{dtype}: batch {batch}")
                pairs = _decodes(engines, [prompt[:context] for prompt in prompts[:batch]], rounds * steps)
                rows.append(_row(dtype, "decode", batch, batch, pairs))
            tick(f"{dtype}: prefill")
            rows.append(_row(dtype, "prefill", 1, prompt_len, _prefills(engines, prompts[0][:prompt_len], rounds)))
            del engines
            gc.collect()
    notes = [
        f"Both engines in one process, in turns: step by step in a decode, prompt by prompt in a prefill. "
        f"Medians of {rounds * steps} steps and of {rounds} prompts; ratio: the median of the ratios of neighbours.",
        f"Greedy, each sequence decoding behind a prompt of {context} tokens; a prefill is one prompt of {prompt_len}, "
        "in the chunks of the engine's default.",
    ]
    return Report("invariance", f"The cost of the same bits in any batch, {model.label}", command, COLUMNS, rows, notes)


def _engine(model: BenchModel, dtype: str, batch: int, longest: int, *, batch_invariant: bool) -> LLMEngine:
    config = config_for_llm(
        model.path,
        dtype=dtype,
        device="cpu",
        load_format=model.load_format,
        skip_tokenizer_init=True,
        max_model_len=longest,
        max_num_seqs=batch,
        num_kv_blocks=batch * -(-longest // 16) + 1,
        enable_prefix_caching=False,  # the prompts come again and again, and are to be computed
        batch_invariant=batch_invariant,
    )
    return LLMEngine(config)


def _decodes(engines: list[LLMEngine], prompts: list[list[int]], steps: int) -> list[Pair]:
    """Steps in which all of them decode."""
    for engine in engines:
        _add(engine, prompts, max_tokens=engine.max_model_len)
        begun: set[str] = set()
        while len(begun) < len(prompts):
            begun |= {output.request_id for output in engine.step()}
        for _ in range(WARM_UP_STEPS):
            engine.step()
    pairs = _pairs(engines, lambda engine: len(engine.step()), steps, expected=len(prompts))
    for engine in engines:
        for number in range(len(prompts)):
            engine.abort_request(str(number))
        _drain(engine)
    return pairs


def _prefills(engines: list[LLMEngine], prompt: list[int], times: int) -> list[Pair]:
    def prefill(engine: LLMEngine) -> int:
        _add(engine, [prompt], max_tokens=1)
        return _drain(engine)

    return _pairs(engines, prefill, times, expected=1)


def _pairs(engines: list[LLMEngine], work: Callable[[LLMEngine], int], times: int, expected: int) -> list[Pair]:
    """Seconds of `work` on each engine in turn; it returns how many outputs came of it."""

    def seconds(engine: LLMEngine) -> float:
        start = time.perf_counter()
        num_outputs = work(engine)
        taken = time.perf_counter() - start
        if num_outputs != expected:
            raise RuntimeError(f"{num_outputs} outputs instead of {expected}")
        return taken

    gc.collect()  # here, and not in the middle of a step
    return [(seconds(engines[0]), seconds(engines[1])) for _ in range(times)]


def _add(engine: LLMEngine, prompts: list[list[int]], max_tokens: int) -> None:
    room = engine.max_model_len - len(prompts[0])
    params = SamplingParams(temperature=0, max_tokens=min(max_tokens, room), ignore_eos=True, detokenize=False)
    for number, prompt in enumerate(prompts):
        engine.add_request(str(number), prompt, params)


def _drain(engine: LLMEngine) -> int:
    """Steps until nothing is left; returns how many outputs came."""
    num_outputs = 0
    while engine.has_unfinished_requests():
        num_outputs += len(engine.step())
    return num_outputs


def _row(dtype: str, work: str, batch: int, tokens: int, pairs: list[Pair]) -> Row:
    normal, invariant = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {
        "dtype": dtype,
        "work": work,
        "batch": batch,
        "tokens": tokens,
        "pairs": len(pairs),
        "normal_ms": normal * 1e3,
        "invariant_ms": invariant * 1e3,
        "ratio": statistics.median(theirs / ours for ours, theirs in pairs),
    }
