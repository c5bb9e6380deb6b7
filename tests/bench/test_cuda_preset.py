"""The nano-vllm preset on a stand-in for an H100, at Qwen3-0.6B's real shape, with nothing computed: what the host asks
of the device, step by step. Prompts are the preset's. For time, answers are a sixteenth as long, steps are large, and
graphs are recorded for seven batch sizes in place of 35."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from folovllm import LLM, LLMEngine, SamplingParams
from folovllm.bench.workload import bench_model
from folovllm.engine import build
from tests.fake_cuda import FakeCuda, fake_cuda_machine
from workshop.bench.presets import PRESETS

pytestmark = pytest.mark.slow  # some ten seconds: 28 layers, a thousand calls each step

TOTAL_BYTES = int(79.1 * 2**30)
SHARE = 0.9


@dataclass
class Launch:
    """What one call of execute_model did."""

    num_tokens: int
    num_seqs: int
    launches: Counter[str]
    waits: list[tuple[str, str]]
    uploads: list[int]

    @property
    def is_graph(self) -> bool:
        return self.launches["graph"] > 0


@dataclass
class Played:
    engine: LLMEngine
    cuda: FakeCuda
    steps: list[Launch] = field(default_factory=list)
    new_variants: Counter[str] = field(default_factory=Counter)
    peak_bytes: int = 0


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: bench throughput --preset nano-vllm measures there")
    preset = PRESETS["nano-vllm"]
    prompts, lengths = preset.draw()
    with (
        pytest.MonkeyPatch.context() as patch,
        bench_model(None, "qwen3-0.6b") as model,
        fake_cuda_machine(numbers=False, total_bytes=TOTAL_BYTES) as cuda,
    ):
        patch.setattr(build, "capture_sizes", lambda max_num_seqs: [1, 8, 32, 64, 128, 192, max_num_seqs])
        engine = LLM(
            model.path, dtype="bfloat16", device="cuda", max_model_len=preset.max_model_len, load_format="dummy",
            skip_tokenizer_init=True, gpu_memory_utilization=SHARE, max_num_batched_tokens=16_384,
        ).engine  # fmt: skip
        result = Played(engine, cuda)
        before = {name: set(keys) for name, keys in cuda.variants.items()}
        for number, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
            params = SamplingParams(
                temperature=preset.temperature, max_tokens=length // 16, ignore_eos=True, detokenize=False
            )
            engine.add_request(str(number), prompt, params)
        launch = engine.runner.execute_model

        def watched(scheduled: Any) -> Any:
            cuda.reset_counts()
            step = launch(scheduled)
            num_tokens, num_seqs = scheduled.total_num_scheduled_tokens, len(scheduled.scheduled_seqs)
            result.steps.append(Launch(num_tokens, num_seqs, cuda.launches, cuda.waits, cuda.uploads))
            return step

        engine.runner.execute_model = watched  # type: ignore[method-assign]
        while engine.has_unfinished_requests():
            engine.step()
        new = {name: len(keys.keys() - before.get(name, set())) for name, keys in cuda.variants.items()}
        result.new_variants = +Counter(new)
        result.peak_bytes = cuda.context_bytes + cuda.devices[0].memory.peak
        result.peak_bytes += sum(pool.peak for pool in cuda.devices[0].pools)
        yield result


def test_it_is_the_real_thing(played: Played) -> None:
    """Qwen3-0.6B's weights, tied, are 1.19 GB in bfloat16. Prompts and decodes share steps; then all decode but those
    with the shortest answers, in the graph for 256."""
    weights = sum(parameter.nbytes for parameter in set(played.engine.runner.model.parameters()))
    assert 1.19e9 < weights < 1.20e9
    assert 240 < max(step.num_seqs for step in played.steps if step.is_graph) <= 256
    assert sum(step.num_tokens for step in played.steps if not step.is_graph) >= 142_827


def test_the_host_waits_for_nothing_while_it_launches(played: Played) -> None:
    assert [wait for step in played.steps for wait in step.waits] == []


def test_a_decode_step_is_one_graph_and_little_beside(played: Played) -> None:
    outside = [sum(step.launches.values()) - 1 for step in played.steps if step.is_graph]
    assert max(outside) <= 21


def test_bytes_in_use_stay_within_the_share_of_memory_that_was_asked_for(played: Played) -> None:
    """With the activations of the largest step, the graphs' pool and what sampling takes."""
    assert played.peak_bytes <= SHARE * TOTAL_BYTES


def test_no_kernel_is_compiled_after_the_start(played: Played) -> None:
    assert played.new_variants == Counter()
