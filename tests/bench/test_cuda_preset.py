"""The nano-vllm preset on a stand-in for an H100, at Qwen3-0.6B's real shape, with nothing computed: what the host asks
of the device, step by step. Prompts are the preset's. For time, answers are a sixteenth as long, steps are large, and
graphs are recorded for seven batch sizes in place of 35."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from folovllm import LLM, SamplingParams
from folovllm.bench.workload import bench_model
from folovllm.engine import build
from tests.fake_cuda import fake_cuda_machine
from workshop.bench.presets import PRESETS

TOTAL_BYTES, SHARE = int(79.1 * 2**30), 0.9


@pytest.mark.slow  # some ten seconds: 28 layers, a thousand calls each step
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU: the GPU kit measures there")
def test_a_decode_step_is_one_graph_waits_for_nothing_and_stays_within_its_memory(monkeypatch) -> None:
    preset = PRESETS["nano-vllm"]
    prompts, lengths = preset.draw()
    steps: list[tuple[int, int, Counter[str]]] = []
    with bench_model(None, "qwen3-0.6b") as model, fake_cuda_machine(numbers=False, total_bytes=TOTAL_BYTES) as cuda:
        monkeypatch.setattr(build, "capture_sizes", lambda max_num_seqs: [1, 8, 32, 64, 128, 192, max_num_seqs])
        engine = LLM(
            model.path, dtype="bfloat16", device="cuda", max_model_len=preset.max_model_len, load_format="dummy",
            skip_tokenizer_init=True, gpu_memory_utilization=SHARE, max_num_batched_tokens=16_384,
        ).engine  # fmt: skip
        weights = sum(parameter.nbytes for parameter in set(engine.runner.model.parameters()))
        assert 1.19e9 < weights < 1.20e9  # tied, in bfloat16
        variants = {name: set(keys) for name, keys in cuda.variants.items()}
        for number, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
            drawn: dict[str, Any] = {"temperature": preset.temperature, "max_tokens": length // 16, "ignore_eos": True}
            engine.add_request(str(number), prompt, SamplingParams(**drawn, detokenize=False))
        launch = engine.runner.execute_model

        def watched(scheduled: Any) -> Any:
            cuda.reset_counts()
            step = launch(scheduled)
            assert cuda.waits == []
            steps.append((scheduled.total_num_scheduled_tokens, len(scheduled.scheduled_seqs), cuda.launches))
            return step

        engine.runner.execute_model = watched  # type: ignore[method-assign]
        while engine.has_unfinished_requests():
            engine.step()
        assert {name: set(keys) for name, keys in cuda.variants.items()} == variants  # nothing was compiled since
        device = cuda.devices[0]
        peak = cuda.context_bytes + device.memory.peak + sum(pool.peak for pool in device.pools)
    graphs = [(num_seqs, launches) for _, num_seqs, launches in steps if launches["graph"]]
    # Prompts and decodes share steps; then all decode but those with the shortest answers, in the graph for 256.
    assert sum(num_tokens for num_tokens, _, launches in steps if not launches["graph"]) >= 142_827
    assert 240 < max(num_seqs for num_seqs, _ in graphs) <= 256
    assert max(sum(launches.values()) - 1 for _, launches in graphs) <= 21
    # With the activations of the largest step, the graphs' pool and what sampling takes.
    assert peak <= SHARE * TOTAL_BYTES
