"""The engine and those it is compared with, behind one small interface: run prompts, say what each step took.

Each is used as its users use it, ours as LLM makes it and through LLMEngine.step(); peers/ has the others.

vLLM: none
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from folovllm.bench.workload import BenchModel
from folovllm.engine.defaults import config_for_llm
from folovllm.engine.llm_engine import LLMEngine
from folovllm.engine.parts import Parts, choose_parts
from folovllm.sampling_params import SamplingParams


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

    def run(self, prompts: list[list[int]], num_tokens: Sequence[int]) -> Run:
        """Generate exactly num_tokens[i] greedily for prompt i, whatever they are."""


class FoloVLLM:
    """LLM's engine: requests are added together, and it schedules them as it does. Greedy unless told otherwise."""

    name = "folovllm"

    def __init__(
        self,
        model: BenchModel,
        dtype: str,
        device: str | None,
        max_model_len: int,
        choose: Callable[..., Parts] = choose_parts,
        **options: Any,
    ) -> None:
        """choose: LLMEngine's. options: more of its settings, by their names."""
        # As LLM has it, whose callers wait for the end; the peers have the steps of a run offline, too.
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
            ),
            choose=choose,
        )
        for observe in model.observers:
            observe(self.engine)
        self.sampling: dict[str, Any] = {"temperature": 0.0}
        """Fields of SamplingParams: how tokens are drawn."""
        self._runs = 0

    def run(self, prompts: list[list[int]], num_tokens: Sequence[int]) -> Run:
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
        if (now := self.engine.stats()).kv_tokens_used > (run.kv_used_tokens or 0):
            run.kv_reserved_tokens, run.kv_used_tokens = now.kv_tokens_reserved, now.kv_tokens_used
