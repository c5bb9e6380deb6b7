"""The engine and those it is compared with, behind one small interface: run prompts, say what each step took.

Each is used as its users use it: ours through LLMEngine.step(), Hugging Face through generate(), with a
streamer that notes when tokens arrive. PEERS says by which name a peer is asked for.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

import torch

from folovllm.bench.workload import BenchModel

PROBE_BYTES = 512 * 2**20


@dataclass(frozen=True)
class Step:
    """One forward pass: what it took, how many tokens came out, whether it read a prompt."""

    seconds: float
    tokens: int
    prefill: bool


class Run(list[Step]):
    """The steps of one run, and the KV cache's tokens when most of them were used, where the engine tells."""

    kv_reserved_tokens: int | None = None
    kv_used_tokens: int | None = None

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
    """LLMEngine: requests are added together, and it schedules them as it does."""

    name = "folovllm"

    def __init__(self, model: BenchModel, dtype: str, device: str | None, max_model_len: int) -> None:
        from folovllm.entrypoints.llm import LLM
        from folovllm.sampling_params import SamplingParams

        self.engine = LLM(
            model.path,
            dtype=dtype,
            device=device,
            max_model_len=max_model_len,
            load_format=model.load_format,
            skip_tokenizer_init=True,
        ).engine
        self._params = SamplingParams
        self._runs = 0

    def run(self, prompts: list[list[int]], num_tokens: int) -> Run:
        return self.run_mixed(prompts, [num_tokens] * len(prompts))

    def run_mixed(self, prompts: list[list[int]], num_tokens: Sequence[int]) -> Run:
        self._runs += 1
        for number, (prompt, max_tokens) in enumerate(zip(prompts, num_tokens, strict=True)):
            params = self._params(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
            self.engine.add_request(f"run{self._runs}-{number}", prompt, params)
        run = Run()
        counts: dict[str, int] = {}
        while self.engine.has_unfinished_requests():
            start = time.perf_counter()
            outputs = self.engine.step()
            seconds = time.perf_counter() - start
            before = sum(counts.values())
            prefill = not outputs or any(output.request_id not in counts for output in outputs)
            counts |= {output.request_id: len(output.outputs[0].token_ids) for output in outputs}
            run.append(Step(seconds, sum(counts.values()) - before, prefill))
            stats = self.engine.stats()
            if stats.kv_tokens_used > (run.kv_used_tokens or 0):
                run.kv_reserved_tokens, run.kv_used_tokens = stats.kv_tokens_reserved, stats.kv_tokens_used
        return run


def load_hf_model(model: BenchModel, dtype: str, device: str | None) -> Any:
    """Hugging Face's model, on the same weights where there are any."""
    from transformers.utils import logging

    from folovllm.config import ModelConfig
    from folovllm.model_loader import ModelLoader

    logging.disable_progress_bar()  # there is one already
    config = ModelConfig(
        model.path, dtype=dtype, device=device, load_format=model.load_format, skip_tokenizer_init=True
    )
    hf_model = ModelLoader(config).load()
    # Every token counts, so none may end the text. generate() would fill an unset EOS from the model's own.
    hf_model.generation_config.eos_token_id = None
    return hf_model


class HuggingFace:
    """transformers' generate(), `batch_size` prompts at a time.

    A batch is static: shorter prompts are padded on the left, and it runs until its longest output is done. Tokens
    that nobody asked for are not counted.
    """

    name = "hf"

    def __init__(self, hf_model: Any, batch_size: int = 1) -> None:
        self.model, self.batch_size = hf_model, batch_size

    def run(self, prompts: list[list[int]], num_tokens: int) -> Run:
        return self.run_mixed(prompts, [num_tokens] * len(prompts))

    def run_mixed(self, prompts: list[list[int]], num_tokens: Sequence[int]) -> Run:
        run = Run()
        for at in range(0, len(prompts), self.batch_size):
            batch = slice(at, at + self.batch_size)
            run += self._generate(prompts[batch], num_tokens[batch])
        return run

    @torch.inference_mode()
    def _generate(self, prompts: list[list[int]], num_tokens: Sequence[int]) -> Run:
        from transformers import GenerationConfig

        steps, width = max(num_tokens), max(len(prompt) for prompt in prompts)
        config = GenerationConfig(do_sample=False, max_new_tokens=steps, pad_token_id=0)
        padded = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        device = self.model.device
        clock = _Clock()
        self.model.generate(
            torch.tensor(padded, device=device),
            attention_mask=torch.tensor(mask, device=device),
            generation_config=config,
            streamer=clock,
        )
        gaps = [later - earlier for earlier, later in pairwise(clock.times)]
        if len(gaps) != steps:
            raise RuntimeError(f"generate() gave {len(gaps)} tokens instead of {steps}")
        return Run(Step(gap, sum(n > number for n in num_tokens), number == 0) for number, gap in enumerate(gaps))


class _Clock:
    """A streamer, as generate() knows them: put() gets the prompt's ids and then each step's."""

    def __init__(self) -> None:
        self.times: list[float] = [time.perf_counter()]
        self._prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        if self._prompt_seen:
            self.times.append(time.perf_counter())
        self._prompt_seen = True

    def end(self) -> None:
        pass


@dataclass
class PeerSetup:
    """What a peer is made from. What holds a process or memory goes onto `cleanup`, which the bench closes."""

    model: BenchModel
    dtype: str
    device: str | None
    max_model_len: int
    num_requests: int
    batch_size: int
    """What --peer-batch-size says, for peers that take a fixed number of prompts at a time."""
    cleanup: ExitStack = field(default_factory=ExitStack)

    @cached_property
    def hf_model(self) -> Any:
        """Loaded once, for all peers that run transformers' own model."""
        return load_hf_model(self.model, self.dtype, self.device)


def _hugging_face(setup: PeerSetup) -> list[Contestant]:
    sizes = sorted({1, min(setup.batch_size, setup.num_requests)})
    return [HuggingFace(setup.hf_model, size) for size in sizes]


# A peer's name -> what makes it: one contestant for each row of the table. An attribute `batch_size` is shown there.
PEERS: dict[str, Callable[[PeerSetup], list[Contestant]]] = {"hf": _hugging_face}


def require_peers(names: Sequence[str]) -> None:
    """Raises ValueError for a name that PEERS lacks, or one that is given twice."""
    for name in names:
        if name not in PEERS:
            raise ValueError(f"peer must be one of {', '.join(PEERS)}, got {name!r}")
        if list(names).count(name) > 1:
            raise ValueError(f"peer must name each peer once, got {name!r} twice")


class BandwidthProbe:
    """How fast this machine reads memory now: the sum of a float32 tensor far larger than any cache."""

    def __init__(self, device: torch.device) -> None:
        self.tensor = torch.ones(PROBE_BYTES // 4, device=device)
        self.samples: list[float] = []

    def measure(self) -> None:
        start = time.perf_counter()
        float(self.tensor.sum())  # float() waits for a GPU
        self.samples.append(self.tensor.nbytes / (time.perf_counter() - start))

    @property
    def bytes_per_s(self) -> float:
        return statistics.median(self.samples)
