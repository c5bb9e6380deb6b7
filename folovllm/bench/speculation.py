"""Decoding with guesses against decoding without, at several batch sizes.

    gain     tokens of a sequence in a step: the guesses that were kept, and one more
    expected gain * plain step / step with guesses, by what the engine measured when it started

Two engines take turns on the same prompts: one with speculative_config, one without. Random weights say nothing that a
draft could guess. There an oracle guesses: each guess is right with a probability that is given, and costs nothing.

vLLM: benchmarks/throughput.py (--speculative-config)
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from folovllm import request
from folovllm.bench.options import add_model, add_output, add_rounds, add_seed
from folovllm.bench.report import Report, Row, medians
from folovllm.bench.workload import BenchModel, progress_bar, random_prompts, require_at_least, vocab_size
from folovllm.config import EMBEDDED_MODEL
from folovllm.engine.defaults import config_for_llm
from folovllm.engine.llm_engine import LLMEngine
from folovllm.engine.parts import Parts, choose_parts
from folovllm.quantize.calibration import read_texts
from folovllm.sampling_params import SamplingParams
from folovllm.spec_decode.metrics import SpecDecodingStats
from folovllm.spec_decode.ngram import NgramProposer

METHODS = ("draft_model", "ngram", "ngram_table", "oracle")
COLUMNS = [
    "method", "dtype", "requests", "plain_tokens_per_s", "tokens_per_s", "ratio", "expected", "gain", "drafted",
    "kept_per_pos",
]  # fmt: skip


class Guess(int):
    """A token that equals any other by chance."""

    chance: Callable[[], bool]

    def __eq__(self, other: object) -> bool:
        return self.chance()

    __hash__ = int.__hash__


class OracleProposer(NgramProposer):
    """Guesses that are right with probability `alpha`, whatever the model draws: random weights say nothing anyway."""

    def __init__(self, alpha: float, seed: int) -> None:
        super().__init__(1, 1)
        rng = random.Random(seed)
        self.guess = Guess()
        self.guess.chance = lambda: rng.random() < alpha

    def propose(self, seqs: list[request.Sequence], counts: list[int]) -> list[list[int]]:
        return [[self.guess] * count for count in counts]

    def choose(self, *args: Any) -> Parts:
        """choose_parts(), with a runner that asks this proposer."""
        parts = choose_parts(*args)
        return replace(parts, runner=partial(self._make_runner, parts.runner))

    def _make_runner(self, make: Callable[..., Any], *parts: Any, **options: Any) -> Any:
        return make(*parts, **options | {"proposer": self})


@dataclass
class Decoding:
    """What an engine did after the step in which the last prompt was computed."""

    seconds: float
    num_tokens: int
    steps: int
    """Of a sequence, all together."""
    guesses: SpecDecodingStats


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Decoding with guesses against decoding without, in turn, at several batch sizes."
    add_model(command)
    text = "what guesses (default: draft_model for --model embedded, else an oracle)"
    command.add_argument("--method", choices=METHODS, help=text)
    text = "share of the oracle's guesses that are right"
    command.add_argument("--acceptance", type=float, metavar="P", default=0.8, help=text)
    text = "guesses of a step at most"
    command.add_argument("--num-speculative-tokens", type=int, metavar="K", default=4, help=text)
    command.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32], metavar="N", help="requests")
    command.add_argument("--input-len", type=int, metavar="N", default=32, help="prompt tokens of a request")
    command.add_argument("--output-len", type=int, metavar="N", default=96, help="new tokens of a request")
    add_rounds(command, default=5)
    add_seed(command)
    add_output(command)


def run(
    model: BenchModel,
    *,
    command: str,
    dtype: str,
    method: str | None = None,
    acceptance: float = 0.8,
    num_speculative_tokens: int = 4,
    batch_sizes: Sequence[int] = (1, 8, 32),
    input_len: int = 32,
    output_len: int = 96,
    device: str | None = None,
    rounds: int = 5,
    seed: int = 0,
) -> Report:
    require_at_least(1, input_len=input_len, rounds=rounds, num_speculative_tokens=num_speculative_tokens)
    require_at_least(2, output_len=output_len)
    for batch in batch_sizes:
        require_at_least(1, batch_sizes=batch)
    if not 0 <= acceptance <= 1:
        raise ValueError(f"acceptance must be from 0 to 1, got {acceptance}")
    method = method or ("draft_model" if model.path == EMBEDDED_MODEL else "oracle")
    vocab = vocab_size(model)
    oracle = OracleProposer(acceptance, seed) if method == "oracle" else None
    speculative = {"method": "ngram" if oracle else method, "num_speculative_tokens": num_speculative_tokens}
    room = max(batch_sizes) * (-(-(input_len + output_len) // 16) + 1)
    make = partial(
        config_for_llm, model.path, dtype=dtype, device=device, load_format=model.load_format, num_kv_blocks=room,
        max_model_len=input_len + output_len, max_num_seqs=max(batch_sizes), enable_prefix_caching=False,
        max_num_batched_tokens=max(2048, max(batch_sizes) * (input_len + num_speculative_tokens)),
        skip_tokenizer_init=model.path != EMBEDDED_MODEL,
    )  # fmt: skip
    with progress_bar(1 + (rounds + 1) * len(batch_sizes)) as tick:
        tick("loading")
        plain = LLMEngine(make())
        guessing = LLMEngine(make(speculative_config=speculative), choose=oracle.choose if oracle else choose_parts)
        for observe in model.observers:
            observe(guessing)
        prompts = _prompts(plain, max(batch_sizes), input_len, vocab, seed)
        found: dict[int, list[tuple[Decoding, Decoding]]] = {batch: [] for batch in batch_sizes}
        for number in range(rounds + 1):  # the first warms up
            for batch, pairs in found.items():
                tick(f"round {number}/{rounds}: {batch} requests")
                some = prompts[:batch]
                pairs.append((_decode(plain, some, output_len), _decode(guessing, some, output_len)))
    what = f"oracle, {acceptance:.0%} right" if oracle else method
    rows = [_row(what, dtype, batch, guessing, pairs[1:]) for batch, pairs in found.items()]
    notes = [
        f"{medians(rounds, 'round')} after a warm-up, with guesses and without in turn; greedy, prompts of {input_len} "
        f"tokens, {output_len} new ones, from when the last prompt was computed.",
        "gain: tokens of a sequence in a step. drafted: guesses of a sequence in a step. kept_per_pos: share of the "
        "drafts of which this guess was kept. expected: the ratio by gain and the times measured at the start.",
    ]
    samples = [_samples(batch, guessing, pairs[1:]) for batch, pairs in found.items()]
    return Report("speculation", f"Guesses against none, {model.label}", command, COLUMNS, rows, notes, samples=samples)


def _prompts(engine: LLMEngine, count: int, length: int, vocab: int, seed: int) -> list[list[int]]:
    """The embedded model's are beginnings of texts that it can go on with; others are random."""
    if engine.tokenizer is None:
        return random_prompts(count, length, vocab, seed)
    texts = read_texts(Path(str(files("folovllm") / "assets" / "embedded" / "calibration.jsonl")))
    text = "".join(prompt + text for prompt, text in texts)
    # verbose: that no model could take in all of it is no news, for it is cut.
    ids: list[int] = engine.tokenizer.encode(text, add_special_tokens=False, verbose=False)
    stride = max(1, (len(ids) - length) // count)
    return [ids[(seed + number) % count * stride :][:length] for number in range(count)]


def _decode(engine: LLMEngine, prompts: list[list[int]], output_len: int) -> Decoding:
    params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        engine.add_request(str(number), prompt, params)
    begun: set[str] = set()
    steps = 0
    gc.collect()  # here, and not in the middle of a step
    while len(begun) < len(prompts):
        begun |= {output.request_id for output in engine.step()}
    before, began = engine.stats(), time.perf_counter()
    while engine.has_unfinished_requests():
        steps += len(engine.requests)
        engine.step()
    seconds, after = time.perf_counter() - began, engine.stats()
    none = SpecDecodingStats()
    guesses = (after.spec_decode or none) - (before.spec_decode or none)
    num_tokens = after.output_tokens - before.output_tokens
    return Decoding(seconds, num_tokens, steps, guesses)


def _samples(batch: int, engine: LLMEngine, pairs: list[tuple[Decoding, Decoding]]) -> dict[str, list[float]]:
    """By round."""
    length = engine.scheduler.drafts.length
    costs = None if length is None else length.costs
    assert costs is not None
    plain_step = costs.seconds_of_step(batch, 1, 0)
    values: dict[str, list[float]] = {name: [] for name in COLUMNS[3:9]}
    for plain, guessing in pairs:
        gain, drafted = guessing.num_tokens / guessing.steps, guessing.guesses.num_draft_tokens / guessing.steps
        expected = gain * plain_step / costs.seconds_of_step(batch, gain, drafted)
        rates = plain.num_tokens / plain.seconds, guessing.num_tokens / guessing.seconds
        for name, value in zip(values, (*rates, rates[1] / rates[0], expected, gain, drafted), strict=True):
            values[name].append(value)
    return values


def _row(method: str, dtype: str, batch: int, engine: LLMEngine, pairs: list[tuple[Decoding, Decoding]]) -> Row:
    row: Row = {name: statistics.median(values) for name, values in _samples(batch, engine, pairs).items()}
    guesses = sum((guessing.guesses for _, guessing in pairs), SpecDecodingStats())
    kept = " ".join(f"{share:.2f}" for share in guesses.acceptance_per_pos) if guesses.num_drafts else None
    row |= {"method": method, "dtype": dtype, "requests": batch, "kept_per_pos": kept}
    return {column: row[column] for column in COLUMNS}
