"""The engine and its peers behind one small interface, in turn: run prompts, say what each step took.

Each is used as its users use it, ours as LLM makes it and through LLMEngine.step(); peers/ has the others. They take
turns round by round, so that a slow minute slows all of them, and the machine is measured between their runs.

vLLM: none
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from folovllm.bench.workload import BenchModel
from folovllm.engine.defaults import config_for_llm
from folovllm.engine.llm_engine import LLMEngine
from folovllm.engine.parts import Parts, choose_parts
from folovllm.sampling_params import SamplingParams

SETTLE = 0.3  # seconds; the threads of Intel's OpenMP look for work for 0.2 after their last
Result = TypeVar("Result")
Work = tuple[list[list[int]], list[int]]
"""Prompts, and how many tokens each gets."""


@dataclass(frozen=True)
class Step:
    """One forward pass: what it took, how many tokens came out, whether it read a prompt."""

    seconds: float
    tokens: int
    prefill: bool


class Run(list[Step]):
    """The steps of one run; of our engine also what it did with its KV cache."""

    kv_reserved_tokens: int | None = None
    kv_used_tokens: int | None = None
    """When most of them were used."""
    prefix_queries = prefix_hits = preemptions = 0
    """Prompt tokens looked up and found in the cache of prefixes, and sequences that gave way."""
    wall_seconds: float | None = None
    """From before the first request is handed over to after the last token; what lies between the steps counts too."""

    @property
    def prefill_seconds(self) -> float:
        return sum(step.seconds for step in self if step.prefill)

    @property
    def decode_seconds(self) -> float:
        return sum(step.seconds for step in self if not step.prefill)

    @property
    def decode_tokens(self) -> int:
        return sum(step.tokens for step in self if not step.prefill)

    @property
    def tokens(self) -> int:
        return sum(step.tokens for step in self)

    @property
    def seconds(self) -> float:
        return self.prefill_seconds + self.decode_seconds


class Contestant(Protocol):
    name: str

    def run(self, prompts: list[list[int]], num_tokens: Sequence[int]) -> Run:
        """Generate exactly num_tokens[i] greedily for prompt i, whatever they are."""


def make_engine(
    model: BenchModel, dtype: str, device: str | None, *, choose: Callable[..., Parts] = choose_parts, **options: Any
) -> LLMEngine:
    """choose: LLMEngine's. options: more of its settings, by their names; there is no text by default."""
    options = {"load_format": model.load_format, "skip_tokenizer_init": True, **options}
    engine = LLMEngine(config_for_llm(model.path, dtype=dtype, device=device, **options), choose=choose)
    for observe in model.observers:
        observe(engine)
    return engine


class FoloVLLM:
    """LLM's engine: requests are added together, and it schedules them as it does. Greedy, unless `sampling` says
    otherwise."""

    name = "folovllm"

    def __init__(self, model: BenchModel, dtype: str, device: str | None, max_model_len: int, **options: Any) -> None:
        # As LLM has it, whose callers wait for the end; the peers have the steps of a run offline, too.
        options = {"performance_mode": "throughput", "max_model_len": max_model_len, **options}
        self.engine = make_engine(model, dtype, device, **options)
        self.sampling: dict[str, Any] = {"temperature": 0.0}
        """Fields of SamplingParams: how tokens are drawn."""
        self._runs = 0

    def run(self, prompts: list[list[int]], num_tokens: Sequence[int]) -> Run:
        """Raises RuntimeError where a request has not got all of its tokens."""
        self._runs += 1
        names = [f"run{self._runs}-{number}" for number in range(len(prompts))]
        run = Run()
        counts: dict[str, int] = {}
        before_run = self.engine.stats()
        begin = time.perf_counter()
        for name, prompt, max_tokens in zip(names, prompts, num_tokens, strict=True):
            params = SamplingParams(**self.sampling, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
            self.engine.add_request(name, prompt, params)
        while self.engine.has_unfinished_requests():
            start = time.perf_counter()
            outputs = self.engine.step()
            seconds = time.perf_counter() - start
            before = sum(counts.values())
            prefill = not outputs or any(output.request_id not in counts for output in outputs)
            counts |= {output.request_id: len(output.outputs[0].token_ids) for output in outputs}
            run.append(Step(seconds, sum(counts.values()) - before, prefill))
            if (now := self.engine.stats()).kv_tokens_used > (run.kv_used_tokens or 0):
                run.kv_reserved_tokens, run.kv_used_tokens = now.kv_tokens_reserved, now.kv_tokens_used
        run.wall_seconds = time.perf_counter() - begin
        after = self.engine.stats()
        run.prefix_queries = after.prefix_cache_queries - before_run.prefix_cache_queries
        run.prefix_hits = after.prefix_cache_hits - before_run.prefix_cache_hits
        run.preemptions = after.preemptions - before_run.preemptions
        if [counts.get(name) for name in names] != list(num_tokens):
            raise RuntimeError("not every request got the tokens it asked for")
        return run


def take_turns(
    plays: Sequence[tuple[str, Callable[[int], Result]]],
    rounds: int,
    tick: Callable[[str], None],
    *,
    before_each: Callable[[bool], None] = lambda warm_up: None,
    settle: float = 0.0,
    back_and_forth: bool = False,
) -> list[list[Result]]:
    """Each one's results of all rounds; round 0 warms up and is left out.

    Args:
        plays: names, and what plays a round of this number.
        tick: gets what begins.
        before_each: called before every turn, to measure the machine; True in the round that warms up.
        back_and_forth: who comes first in a round comes last in the next.
    """
    results: list[list[Result]] = [[] for _ in plays]
    for number in range(rounds + 1):
        for at in range(len(plays)) if number % 2 or not back_and_forth else reversed(range(len(plays))):
            name, play = plays[at]
            tick(f"round {number}/{rounds}: {name}" if number else f"warm-up: {name}")
            gc.collect()  # here, and not in the middle of a run
            time.sleep(settle)
            before_each(number == 0)
            result = play(number)
            if number:
                results[at].append(result)
    return results


def in_rounds(
    contestants: Sequence[Contestant], rounds: int, work: Callable[[int], Work], tick: Callable[[str], None],
    **options: Any,
) -> list[list[Run]]:  # fmt: skip
    """take_turns() of contestants; `work` has each round's prompts."""

    def play(contestant: Contestant) -> Callable[[int], Run]:
        return lambda number: contestant.run(*work(number))

    def label(contestant: Contestant) -> str:
        size = getattr(contestant, "batch_size", None)
        return contestant.name + (f" batch {size}" if size else "")

    plays = [(label(contestant), play(contestant)) for contestant in contestants]
    return take_turns(plays, rounds, tick, settle=SETTLE if len(plays) > 1 else 0.0, **options)


def synchronize(device: torch.device) -> None:
    """A GPU's calls only queue the work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
