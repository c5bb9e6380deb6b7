"""What the stand-in counts in bytes: all that an engine does stays within the share of memory that it was given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers.models.qwen3 import Qwen3Config

from folovllm import LLM, LLMEngine, SamplingParams
from folovllm.worker.cuda_graph import bytes_of_graphs, capture_sizes
from tests.fake_cuda import FakeCuda, fake_cuda_machine

SHARE, TOTAL_BYTES, NUM_SEQS = 0.9, 3 << 30, 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of Qwen3-0.6B under its whole vocabulary."""
    path = tmp_path_factory.mktemp("shallow")
    Qwen3Config(
        hidden_size=1024,
        num_hidden_layers=2,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        intermediate_size=3072,
        vocab_size=151936,
        tie_word_embeddings=True,
        max_position_embeddings=40960,
        architectures=["Qwen3ForCausalLM"],
        dtype=torch.bfloat16,
        bos_token_id=None,
        eos_token_id=None,
    ).save_pretrained(path)
    return path


@pytest.fixture
def shapes_only() -> Iterator[FakeCuda]:
    with fake_cuda_machine(numbers=False, total_bytes=TOTAL_BYTES) as machine:
        yield machine


def make_engine(folder: Path) -> LLMEngine:
    return LLM(
        str(folder), dtype="bfloat16", device="cuda", max_model_len=4096, max_num_seqs=NUM_SEQS, load_format="dummy",
        skip_tokenizer_init=True, gpu_memory_utilization=SHARE, max_num_batched_tokens=4096,
    ).engine  # fmt: skip


DRAWS = {
    "plain": SamplingParams(max_tokens=3),
    "all that edits": SamplingParams(max_tokens=3, repetition_penalty=1.1, logprobs=2, min_tokens=1),
    "top_p": SamplingParams(max_tokens=3, repetition_penalty=1.1, top_p=0.9, logprobs=2),
    "processed": SamplingParams(max_tokens=3, repetition_penalty=1.1, logprobs=2, logprobs_mode="processed"),
}


def test_every_kind_of_draw_stays_within_the_share(folder: Path, shapes_only: FakeCuda) -> None:
    """And the largest needs nearly all of it: nothing is kept back for nobody."""
    engine, device = make_engine(folder), shapes_only.devices[0]
    peaks = {}
    for name, params in DRAWS.items():
        device.memory.peak = device.memory.live
        for number in range(NUM_SEQS):
            engine.add_request(f"{name}-{number}", [5] * 64, params)
        while engine.has_unfinished_requests():
            engine.step()
        pools = sum(pool.peak for pool in device.pools)
        peaks[name] = shapes_only.context_bytes + pools + device.memory.peak
    assert max(peaks.values()) <= SHARE * TOTAL_BYTES
    assert max(peaks.values()) > SHARE * TOTAL_BYTES - (64 << 20)


def test_what_graphs_take_is_known_before_there_is_a_cache(folder: Path, shapes_only: FakeCuda) -> None:
    engine, device = make_engine(folder), shapes_only.devices[0]
    runner, sizes = engine.runner, capture_sizes(NUM_SEQS)
    graphs = runner.graphs
    assert graphs is not None
    kept = [*vars(graphs.outputs).values(), graphs.buffers.packed, graphs.buffers.block_tables]
    caches = [layer.kv_cache for layer in runner.model.attention_layers]
    foretold = bytes_of_graphs(
        runner.model, type(runner.kv_cache.backend), sizes, max_model_len=4096, block_size=16, dtype=torch.bfloat16,
        device=device.torch_device, draws=True,
    )  # fmt: skip
    assert [layer.kv_cache for layer in runner.model.attention_layers] == [None] * len(caches)
    taken = graphs.pool_bytes + sum(tensor.nbytes for tensor in kept)
    assert taken <= foretold <= 2 * taken
