"""The engine and those it is compared with, behind one small interface: run prompts, say what each step took.

Each is used as its users use it, ours as LLM makes it and through LLMEngine.step(); peers/ has the others. They take
turns, round by round, so that a slow minute of the machine slows all of them.

vLLM: none
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from folovllm.bench.workload import BenchModel
from folovllm.engine.defaults import config_for_llm
from folovllm.engine.llm_engine import LLMEngine
from folovllm.sampling_params import SamplingParams

SETTLE = 0.3  # seconds; the threads of Intel's OpenMP look for work for 0.2 after their last


@dataclass(frozen=True)
class Step:
    """One forward pass: what it took, how many tokens came out, whether it read a prompt."""

    seconds: float
    tokens: int
    prefill: bool


class Run(list[Step]):
    """The steps of one run; and, where the engine tells, the KV cache's tokens when most of them were used."""

    kv_reserved_tokens: int | None = None
    kv_used_tokens: int | None = None
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

    def run(self, prompts: list[list[int]], num_tokens: int) -> Run:
        """Generate exactly num_tokens greedily for each prompt, whatever they are."""


@runtime_checkable
class MixedContestant(Protocol):
    """One that also takes requests of different lengths."""

    def run_mixed(self, prompts: list[list[int]], num_tokens: Sequence[int]) -> Run:
        """Generate exactly num_tokens[i] greedily for prompt i."""


class FoloVLLM:
    """LLM's engine: requests are added together, and it schedules them as it does. Greedy unless told otherwise."""

    name = "folovllm"

    def __init__(
        self,
        model: BenchModel,
        dtype: str,
        device: str | None,
        max_model_len: int,
        **options: Any,
    ) -> None:
        """`options`: more of the engine's settings, by their names."""
        # As LLM has it, for nobody reads along; the peers have the steps of a run offline, too.
        options = {"performance_mode": "throughput", **options}
        self.engine = LLMEngine(
            config_for_llm(
                model.path,
                dtype=dtype,
                device=device,
                max_model_len=max_model_len,
                load_format=model.load_format,
                skip_tokenizer_init=True,
                **options,
            )
        )
        self.sampling: dict[str, Any] = {"temperature": 0.0}
        """Fields of SamplingParams: how tokens are drawn."""
        self._runs = 0

    def run(self, prompts: list[list[int]], num_tokens: int) -> Run:
        return self.run_mixed(prompts, [num_tokens] * len(prompts))

    def run_mixed(self, prompts: list[list[int]], num_tokens: Sequence[int]) -> Run:
        """Raises RuntimeError where a request has not got all of its tokens."""
        self._runs += 1
        names = [f"run{self._runs}-{number}" for number in range(len(prompts))]
        run = Run()
        counts: dict[str, int] = {}
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
            self._look_at_cache(run)
        run.wall_seconds = time.perf_counter() - begin
        if [counts.get(name) for name in names] != list(num_tokens):
            raise RuntimeError("not every request got the tokens it asked for")
        return run

    def _look_at_cache(self, run: Run) -> None:
        stats = getattr(self.engine, "stats", None)  # statistics come with the scheduler, at m2
        if stats is not None and (now := stats()).kv_tokens_used > (run.kv_used_tokens or 0):
            run.kv_reserved_tokens, run.kv_used_tokens = now.kv_tokens_reserved, now.kv_tokens_used


def take_turns(
    contestants: Sequence[Contestant],
    rounds: int,
    work: Callable[[int], tuple[list[list[int]], list[int]]],
    tick: Callable[[str], None],
    before_each: Callable[[bool], None] = lambda warm_up: None,
) -> list[list[Run]]:
    """Each contestant's runs, one for each round; round 0 warms up and is left out.

    Args:
        work: a round's number -> prompts, and how many tokens each gets.
        tick: is told what begins.
        before_each: called before every run, to measure the machine at the same time; True in the round that warms up.
    """
    runs: list[list[Run]] = [[] for _ in contestants]
    for number in range(rounds + 1):
        prompts, num_tokens = work(number)
        for contestant, results in zip(contestants, runs, strict=True):
            size = getattr(contestant, "batch_size", None)
            label = contestant.name + (f" batch {size}" if size else "")
            tick(f"round {number}/{rounds}: {label}" if number else f"warm-up: {label}")
            gc.collect()  # here, and not in the middle of a run
            if len(contestants) > 1:
                time.sleep(SETTLE)
            before_each(number == 0)
            if isinstance(contestant, MixedContestant):
                result = contestant.run_mixed(prompts, num_tokens)
            else:
                result = contestant.run(prompts, num_tokens[0])  # all the same: require_mixed() has seen to it
            if number:
                results.append(result)
    return runs


def require_mixed(contestants: Sequence[Contestant], field: str) -> None:
    """Raises ValueError, about `field`, for a contestant that cannot take requests of different lengths."""
    for contestant in contestants:
        if not isinstance(contestant, MixedContestant):
            raise ValueError(
                f"{field} must be off with the peer {contestant.name!r}: its requests end all together; choose another "
                "peer, such as hf"
            )
