"""The engine and those it is compared with, behind one small interface: run prompts, say what each step took.

Each is used as its users use it: ours through LLMEngine.step(), Hugging Face through generate(), with a
streamer that notes when tokens arrive.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

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
    """The steps of one run."""

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
        params = self._params(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        self._runs += 1
        for number, prompt in enumerate(prompts):
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
    """transformers' generate(), `batch_size` prompts of one length at a time."""

    name = "hf"

    def __init__(self, hf_model: Any, batch_size: int = 1) -> None:
        self.model, self.batch_size = hf_model, batch_size

    def run(self, prompts: list[list[int]], num_tokens: int) -> Run:
        run = Run()
        for at in range(0, len(prompts), self.batch_size):
            run += self._generate(prompts[at : at + self.batch_size], num_tokens)
        return run

    @torch.inference_mode()
    def _generate(self, prompts: list[list[int]], num_tokens: int) -> Run:
        from transformers import GenerationConfig

        config = GenerationConfig(do_sample=False, max_new_tokens=num_tokens, pad_token_id=0)
        ids = torch.tensor(prompts, device=self.model.device)
        mask = torch.ones_like(ids)
        clock = _Clock()
        self.model.generate(ids, attention_mask=mask, generation_config=config, streamer=clock)
        gaps = [later - earlier for earlier, later in pairwise(clock.times)]
        if len(gaps) != num_tokens:
            raise RuntimeError(f"generate() gave {len(gaps)} tokens instead of {num_tokens}")
        return Run(Step(gap, len(prompts), number == 0) for number, gap in enumerate(gaps))


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
