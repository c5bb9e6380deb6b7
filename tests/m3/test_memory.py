"""How large the KV cache is, by hand; and what an engine does whose cache holds less than max_model_len tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from folovllm import EngineConfig, SamplingParams
from folovllm.attention.backends.paged_torch import PagedTorchBackend
from folovllm.config import CacheConfig, SchedulerConfig
from folovllm.engine.llm_engine import LLMEngine
from folovllm.errors import PromptTooLongError
from folovllm.worker.memory import CacheSize, size_kv_cache
from folovllm.worker.profile import run_full_step
from tests.m1.support import params, run
from tests.m2.support import assert_idle, make_engine
from tests.m3.oracle import Oracle

CPU = torch.device("cpu")
GIB = 2**30
TOKEN_BYTES = 2**20  # so that a block of 16 tokens is 16 MiB, and a GiB has 64 of them


def never() -> int:
    raise AssertionError("a step is measured on a GPU only")


def size(free_gib: float, monkeypatch: pytest.MonkeyPatch, **kwargs: Any) -> CacheSize:
    """64 sequences of up to 1,024 tokens, unless kwargs say otherwise."""
    monkeypatch.setattr("folovllm.worker.memory.free_memory_bytes", lambda device: int(free_gib * GIB))
    cache = CacheConfig(**{name: kwargs.pop(name) for name in ("num_kv_blocks", "swap_space") if name in kwargs})
    limits = SchedulerConfig(**{"max_num_seqs": 64, "max_model_len": 1024, "max_num_batched_tokens": 2048, **kwargs})
    return size_kv_cache(TOKEN_BYTES, cache, limits, CPU, never)


def test_on_a_cpu_the_cache_takes_a_quarter_of_what_is_free(monkeypatch):
    found = size(8, monkeypatch)
    assert (found.num_blocks, found.num_tokens, found.block_bytes) == (128, 2048, 16 * 2**20)
    assert str(found) == (
        "128 blocks of 16 tokens = 2,048 tokens, 2.00 GiB (25% of 8.0 GiB free memory); 256 swap blocks"
    )


def test_no_more_than_all_sequences_can_use(monkeypatch):
    found = size(1000, monkeypatch, max_num_seqs=3, max_model_len=100)
    assert found.num_blocks == 3 * 7
    assert found.reason == "all that max_num_seqs and max_model_len can use"
    assert found.num_swap_blocks == 3 * 7


def test_num_kv_blocks_is_taken_at_its_word(monkeypatch):
    found = size(8, monkeypatch, num_kv_blocks=500)
    assert (found.num_blocks, found.reason) == (500, "num_kv_blocks")


def test_num_kv_blocks_that_do_not_fit_are_refused(monkeypatch):
    with pytest.raises(
        ValueError,
        match=r"^num_kv_blocks must fit into memory, got 513: 8\.02 GiB where 8\.00 GiB are free; lower it or block_",
    ):
        size(8, monkeypatch, num_kv_blocks=513)


def test_memory_for_not_even_one_block_is_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"^block_size must let a block fit into memory, got 16: a block is 0\.01"):
        size(0.05, monkeypatch)


@pytest.mark.parametrize(("swap_space", "blocks"), [(0, 0), (1, 64), (0.5, 32), (0.01, 0)])
def test_swap_space_is_in_gib(monkeypatch, swap_space, blocks):
    assert size(8, monkeypatch, swap_space=swap_space).num_swap_blocks == blocks


def test_swapping_without_swap_space_is_refused(monkeypatch):
    with pytest.raises(
        ValueError, match=r"^swap_space must hold at least one block for preemption_mode 'swap', got 0: a block is 0"
    ):
        size(8, monkeypatch, swap_space=0, preemption_mode="swap")
    assert "no swap space" in str(size(8, monkeypatch, swap_space=0))


def test_a_gpu_gives_its_share_less_what_is_used_and_what_a_step_takes(monkeypatch):
    """80 GiB, of which 60 are free: 0.9 * 80 - 20 - 12 = 40 GiB."""
    monkeypatch.setattr("folovllm.worker.memory.free_memory_bytes", lambda device: 60 * GIB)
    monkeypatch.setattr("folovllm.worker.memory.total_memory_bytes", lambda device: 80 * GIB)
    limits = SchedulerConfig(max_num_seqs=64, max_model_len=1024)
    found = size_kv_cache(TOKEN_BYTES, CacheConfig(), limits, torch.device("cuda", 0), lambda: 12 * GIB)
    assert found.num_blocks == 40 * 64
    assert "gpu_memory_utilization 0.9 of 80.0 GiB, less 20.0 GiB in use and 12.0 GiB" in found.reason


def test_a_full_size_step_runs_on_any_device(oracle: Oracle) -> None:
    model = oracle.make_llm().engine.runner.model
    sizes: list[tuple[int, int]] = []
    handle = model.register_forward_pre_hook(lambda module, args: sizes.append((len(args[0]), len(args[2].seq_lens))))
    limits = SchedulerConfig(max_num_batched_tokens=100, max_num_seqs=8, max_model_len=40)
    num_bytes = run_full_step(model, PagedTorchBackend, 16, limits, dtype=torch.float32, device=CPU)
    handle.remove()
    assert sizes == [(100, 3)]  # 40, 40 and 20 tokens
    blocks = 1 + 3 * 3
    assert num_bytes == blocks * 16 * 2 * 2 * 2 * 16 * 4  # tokens, K and V, layers, heads, head size, bytes


def test_a_full_size_step_of_few_tokens_needs_no_cache_for_a_sequence_of_the_greatest_length(oracle: Oracle) -> None:
    """17 GB for Llama-3.1-8B with 131,072 tokens, of which a step computes 2,048."""
    model = oracle.make_llm().engine.runner.model
    limits = SchedulerConfig(max_num_batched_tokens=20, max_num_seqs=8, max_model_len=128)
    num_bytes = run_full_step(model, PagedTorchBackend, 16, limits, dtype=torch.float32, device=CPU)
    blocks = 1 + 2
    assert num_bytes == blocks * 16 * 2 * 2 * 2 * 16 * 4  # tokens, K and V, layers, heads, head size, bytes


def test_after_a_measured_step_the_model_has_the_engines_cache(oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("folovllm.worker.memory._budget", lambda share, device, measure: (measure(), "measured"))
    monkeypatch.setattr("folovllm.engine.builder.engine_core.peak_bytes", lambda run, device: run())
    llm = oracle.make_llm(max_num_batched_tokens=128)
    assert (llm.engine.core.cache_size.num_blocks, llm.engine.core.cache_size.reason) == (1 + 128 // 16, "measured")
    assert [tensor.shape[1] for tensor in llm.engine.runner.kv_cache.tensors] == [10, 10]
    output = llm.generate([1, 2, 3], SamplingParams(temperature=0, max_tokens=5), use_tqdm=False)[0]
    assert output.outputs[0].token_ids == oracle.greedy([1, 2, 3], 5)


def test_a_cache_smaller_than_max_model_len_ends_sequences_by_length(oracle: Oracle) -> None:
    """4 blocks of 8 hold 32 tokens where the model could take 128."""
    llm = oracle.make_llm(num_kv_blocks=4, block_size=8)
    assert llm.engine.max_model_len == 32
    prompts = [[5, 6, 7], [1] * 20, [9]]
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=100), use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.outputs[0].token_ids == oracle.greedy(prompt, 32 - len(prompt))
        assert output.outputs[0].finish_reason == "length"
    assert_idle(llm.engine)


def test_a_prompt_that_the_cache_can_never_hold_is_refused_and_the_others_go_on(oracle: Oracle) -> None:
    engine = oracle.make_llm(num_kv_blocks=4, block_size=8).engine
    engine.add_request("a", [5, 6, 7], params(temperature=0, max_tokens=8))
    engine.step()
    with pytest.raises(
        PromptTooLongError,
        match=r"^prompt has 32 tokens, but max_model_len is 32 .* \(the KV cache holds 32 tokens\): shorten the prompt",
    ):
        engine.add_request("long", [1] * 32, params())
    engine.add_request("b", [1] * 31, params(temperature=0))
    done = run(engine)[0]
    assert done["a"].outputs[0].token_ids == oracle.greedy([5, 6, 7], 8)
    assert done["b"].outputs[0].token_ids == oracle.greedy([1] * 31, 1)


def test_a_cache_that_is_larger_says_so_when_a_prompt_is_too_long(oracle: Oracle) -> None:
    engine = oracle.make_llm(num_kv_blocks=10, block_size=8, max_model_len=16).engine
    with pytest.raises(PromptTooLongError, match=r"max_model_len is 16 .* \(the KV cache holds 80 tokens\)"):
        engine.add_request("long", [1] * 16, params())


def test_the_dense_backend_needs_a_block_for_a_whole_sequence(oracle: Oracle) -> None:
    with pytest.raises(
        ValueError,
        match=r"^attention_backend 'dense' reads a sequence from one block: it needs a block_size of at least "
        r"max_model_len \(128\), got 16$",
    ):
        oracle.make_llm(attention_backend="dense")
    llm = oracle.make_llm(attention_backend="dense", block_size=128, num_kv_blocks=3, max_num_seqs=3)
    prompts = [[i, 2, 3, 4] for i in range(5)]
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=20), use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == [oracle.greedy(prompt, 20) for prompt in prompts]


def test_swapping_whole_contiguous_sequences_keeps_their_tokens(oracle: Oracle) -> None:
    llm = oracle.make_llm(attention_backend="dense", block_size=128, num_kv_blocks=2, preemption_mode="swap")
    prompt = [3, 1, 4, 1, 5]
    outputs = llm.generate(prompt, SamplingParams(n=5, top_k=1, max_tokens=12), use_tqdm=False)
    assert [completion.token_ids for completion in outputs[0].outputs] == [oracle.greedy(prompt, 12)] * 5
    assert llm.engine.stats().preemptions > 0


def test_stats_of_the_cache_by_hand(text_model_folder):
    engine = make_engine(text_model_folder, num_kv_blocks=10, block_size=4)
    engine.add_request("a", [1, 2, 3, 4, 5], params(max_tokens=9, ignore_eos=True))
    engine.add_request("b", [1, 2, 3], params(n=2, max_tokens=9, ignore_eos=True))
    engine.step()
    stats = engine.stats()
    assert (stats.kv_blocks_total, stats.kv_blocks_used, stats.kv_blocks_shared) == (10, 3, 1)
    assert (stats.kv_tokens_reserved, stats.kv_tokens_used) == (12, 5 + 3 + 3)
    engine.step()  # the two of b part: one copies the block that they share
    stats = engine.stats()
    assert (stats.kv_blocks_used, stats.kv_blocks_shared, stats.kv_tokens_used) == (4, 0, 6 + 4 + 4)
    run(engine)
    assert engine.stats().prompt_tokens == 5 + 3  # the prompt of two sequences is computed once
    assert_idle(engine)


def test_the_engine_shows_its_size(text_model_folder):
    config = EngineConfig.from_kwargs(model=str(text_model_folder), device="cpu", num_kv_blocks=7, swap_space=0)
    engine = LLMEngine(config)
    assert engine.core.cache_size.num_blocks == 7
    assert str(engine.core.cache_size).startswith("7 blocks of 16 tokens = 112 tokens, ")
