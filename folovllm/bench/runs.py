"""The engine run to the end of some prompts: what each of its steps took.

It is used as its users use it, as LLM makes it and through LLMEngine.step().

vLLM: none
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from folovllm.bench.workload import BenchModel, progress_bar
from folovllm.engine.builder.components import Components, choose_components
from folovllm.engine.builder.defaults import config_for_llm
from folovllm.engine.llm_engine import LLMEngine
from folovllm.sampling_params import SamplingParams

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
    """Prompt tokens looked up and found in the cache of prefixes, and sequences that were preempted."""
    wall_seconds: float | None = None
    """From before the first request is handed over to after the last token, the time between steps included."""

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self)

    @property
    def prefill_seconds(self) -> float:
        return sum(step.seconds for step in self if step.prefill)

    @property
    def decode_seconds(self) -> float:
        return sum(step.seconds for step in self if not step.prefill)

    @property
    def decode_tokens(self) -> int:
        return sum(step.tokens for step in self if not step.prefill)


def make_engine(
    model: BenchModel, dtype: str, device: str | None, *, choose: Callable[..., Components] = choose_components,
    **options: Any,
) -> LLMEngine:  # fmt: skip
    """choose: LLMEngine's. options: more of its settings, by their names; there is no text by default."""
    options = {"load_format": model.load_format, "skip_tokenizer_init": True, **options}
    engine = LLMEngine(config_for_llm(model.path, dtype=dtype, device=device, **options), choose=choose)
    for observe in model.observers:
        observe(engine)
    return engine


class FoloVLLM:
    """LLM's engine: requests are added together, and it schedules them as it does."""

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
        run, counts, engine = Run(), dict[str, int](), self.engine
        before_run, begin = engine.stats(), time.perf_counter()
        for name, prompt, max_tokens in zip(names, prompts, num_tokens, strict=True):
            params = SamplingParams(**self.sampling, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
            engine.add_request(name, prompt, params)
        while engine.has_unfinished_requests():
            start = time.perf_counter()
            outputs = engine.step()
            seconds = time.perf_counter() - start
            before = sum(counts.values())
            prefill = not outputs or any(output.request_id not in counts for output in outputs)
            counts |= {output.request_id: len(output.outputs[0].token_ids) for output in outputs}
            run.append(Step(seconds, sum(counts.values()) - before, prefill))
            if (now := engine.stats()).kv_tokens_used > (run.kv_used_tokens or 0):
                run.kv_reserved_tokens, run.kv_used_tokens = now.kv_tokens_reserved, now.kv_tokens_used
        run.wall_seconds, after = time.perf_counter() - begin, engine.stats()
        run.prefix_queries = after.prefix_cache_queries - before_run.prefix_cache_queries
        run.prefix_hits = after.prefix_cache_hits - before_run.prefix_cache_hits
        run.preemptions = after.preemptions - before_run.preemptions
        if [counts.get(name) for name in names] != list(num_tokens):
            raise RuntimeError("not every request got the tokens it asked for")
        return run


def rounds_of(engine: FoloVLLM, rounds: int, work: Callable[[int], Work]) -> list[Run]:
    """A run of each round. `work`: its prompts; round 0 warms up and is left out."""
    runs = []
    with progress_bar(rounds + 1) as tick:
        for number in range(rounds + 1):
            tick(f"round {number}/{rounds}" if number else "warm-up")
            gc.collect()  # here, and not in the middle of a run
            runs.append(engine.run(*work(number)))
    return runs[1:]
