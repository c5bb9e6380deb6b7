"""Decoding with draft tokens against decoding without, at several batch sizes.

    gain     tokens of a sequence in a step: the drafts that were kept, and one more
    expected gain * plain step / step with drafts, by what the engine takes them to cost

Two engines take turns on the same prompts: one with speculative_config, one without. Random weights say nothing that a
draft model could propose. There an oracle does: each of its tokens is right with a given probability, and is free.

vLLM: benchmarks/throughput.py (--speculative-config)
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Any

from folovllm import request
from folovllm.bench.options import add_batch_sizes, add_common, add_lengths, add_model, add_number, source
from folovllm.bench.report import Report, medians
from folovllm.bench.runs import make_engine
from folovllm.bench.workload import progress_bar, random_prompts, vocab_size
from folovllm.config import EMBEDDED_MODEL
from folovllm.engine.builder.components import Components, choose_components
from folovllm.engine.llm_engine import LLMEngine
from folovllm.quantize.calibration import read_texts
from folovllm.sampling_params import SamplingParams
from folovllm.spec_decode.metrics import SpecDecodingStats
from folovllm.spec_decode.ngram import NgramProposer
from workshop.bench.rounds import take_turns

METHODS = ("draft_model", "eagle", "ngram", "ngram_table", "oracle")
COLUMNS = [
    "method", "dtype", "requests", "plain_tokens_per_s", "tokens_per_s", "ratio", "expected", "gain", "drafted",
    "kept_per_pos",
]  # fmt: skip


class Draft(int):
    """A token that equals any other by chance."""

    chance: Callable[[], bool]

    def __eq__(self, other: object) -> bool:
        return self.chance()

    __hash__ = int.__hash__


class OracleProposer(NgramProposer):
    """Drafts that are right with probability `alpha`, whatever the model draws."""

    def __init__(self, alpha: float, seed: int) -> None:
        super().__init__(1, 1)
        rng = random.Random(seed)
        self.draft = Draft()
        self.draft.chance = lambda: rng.random() < alpha

    def propose(self, seqs: list[request.Sequence], counts: list[int]) -> list[list[int]]:
        return [[self.draft] * count for count in counts]

    def choose(self, *args: Any) -> Components:
        """choose_components(), with a runner that asks this proposer."""
        parts = choose_components(*args)
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
    drafts: SpecDecodingStats


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = "Decoding with draft tokens against decoding without, in turn, at several batch sizes."
    add_model(command)
    text = "what drafts (default: draft_model for --model embedded, else an oracle)"
    command.add_argument("--method", choices=METHODS, help=text)
    text = "share of the oracle's tokens that are right"
    command.add_argument("--acceptance", type=float, metavar="P", default=0.8, help=text)
    add_number(command, "--num-speculative-tokens", default=4, help="draft tokens of a step at most")
    add_batch_sizes(command, 1, 8, 32, help="requests")
    add_lengths(command, None, 32, 96)
    add_common(command, rounds=5)


def run(args: argparse.Namespace) -> Report:
    if not 0 <= args.acceptance <= 1:
        raise ValueError(f"acceptance must be from 0 to 1, got {args.acceptance}")
    batch_sizes, length, output_len = args.batch_sizes, args.input_len + args.output_len, args.output_len
    most, count = max(batch_sizes), args.num_speculative_tokens
    with source(args) as model, progress_bar(1 + 2 * (args.rounds + 1) * len(batch_sizes)) as tick:
        tick("loading")
        method = args.method or ("draft_model" if model.path == EMBEDDED_MODEL else "oracle")
        oracle = OracleProposer(args.acceptance, args.seed) if method == "oracle" else None
        make = partial(
            make_engine, model, args.dtype, args.device, num_kv_blocks=most * (-(-length // 16) + 1),
            max_model_len=length, max_num_seqs=most, enable_prefix_caching=False,
            max_num_batched_tokens=max(2048, most * (args.input_len + count)),
            skip_tokenizer_init=model.path != EMBEDDED_MODEL,
        )  # fmt: skip
        speculative = {"method": "ngram" if oracle else method, "num_speculative_tokens": count}
        drafting = make(speculative_config=speculative, choose=oracle.choose if oracle else choose_components)
        engines = {"plain": make(), "drafts": drafting}
        prompts = _prompts(drafting, most, args.input_len, vocab_size(model), args.seed)
        plays = [
            (f"{batch} requests, {name}", lambda number, e=engine, b=batch: _decode(e, prompts[:b], output_len))
            for batch in batch_sizes
            for name, engine in engines.items()
        ]
        found = take_turns(plays, args.rounds, tick)
    what = f"oracle, {args.acceptance:.0%} right" if oracle else method
    lines = []
    for at, batch in enumerate(batch_sizes):
        plain, drafted = found[2 * at], found[2 * at + 1]
        drafts = sum((one.drafts for one in drafted), SpecDecodingStats())
        # Shares of all drafts, as vLLM counts them: drafts differ in length.
        shares = [count / drafts.num_drafts for count in drafts.num_accepted_tokens_per_pos if drafts.num_drafts]
        kept = " ".join(f"{share:.2f}" for share in shares) or None
        facts = {"method": what, "dtype": args.dtype, "requests": batch, "kept_per_pos": kept}
        lines.append((facts, _samples(batch, drafting, plain, drafted)))
    notes = [
        f"{medians(args.rounds, 'round')} after a warm-up, with drafts and without in turn; greedy, prompts of "
        f"{args.input_len} tokens, {output_len} new ones, from when the last prompt was computed.",
        "gain: tokens of a sequence in a step. drafted: draft tokens of a sequence in a step. kept_per_pos: share of "
        "the drafts of which this token was kept. expected: the ratio by gain and the costs that the engine assumes.",
    ]
    return Report.of(args, f"Draft tokens against none, {model.label}", COLUMNS, lines, notes)


def _prompts(engine: LLMEngine, count: int, length: int, vocab: int, seed: int) -> list[list[int]]:
    """The embedded model's are beginnings of texts that it can go on with; others are random."""
    if engine.tokenizer is None:
        return random_prompts([length] * count, vocab, seed)
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
    seconds, after, none = time.perf_counter() - began, engine.stats(), SpecDecodingStats()
    drafts = _since(after.spec_decode or none, before.spec_decode or none)
    return Decoding(seconds, after.output_tokens - before.output_tokens, steps, drafts)


def _since(after: SpecDecodingStats, before: SpecDecodingStats) -> SpecDecodingStats:
    pairs = zip_longest(after.num_accepted_tokens_per_pos, before.num_accepted_tokens_per_pos, fillvalue=0)
    return SpecDecodingStats(
        after.num_drafts - before.num_drafts,
        after.num_draft_tokens - before.num_draft_tokens,
        tuple(now - then for now, then in pairs),
    )


def _samples(batch: int, engine: LLMEngine, plain: list[Decoding], drafted: list[Decoding]) -> dict[str, list[float]]:
    length = engine.scheduler.drafts.length
    costs = None if length is None else length.costs
    assert costs is not None
    values: dict[str, list[float]] = {name: [] for name in COLUMNS[3:9]}
    for old, new in zip(plain, drafted, strict=True):
        gain, drafts = new.num_tokens / new.steps, new.drafts.num_draft_tokens / new.steps
        expected = gain * costs.of_step(batch, 0) / costs.of_step(batch, drafts)
        rates = old.num_tokens / old.seconds, new.num_tokens / new.seconds
        for name, value in zip(values, (*rates, rates[1] / rates[0], expected, gain, drafts), strict=True):
            values[name].append(value)
    return values
