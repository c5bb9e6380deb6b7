"""device="mps" on the stand-in for a Mac's GPU: torch computes with what it has there, and the CPU draws."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from folovllm import SamplingParams
from tests.m3.oracle import Oracle
from tests.m4.cuda_support import PROMPTS, make_engine, serve
from tests.m11.fake_mps import MpsTensor, fake_mps_machine

GREEDY = SamplingParams(temperature=0, max_tokens=6)
SAMPLED = [
    SamplingParams(temperature=0.9, seed=1, max_tokens=6, n=2),
    SamplingParams(temperature=1.1, seed=2, top_k=20, top_p=0.8, max_tokens=6, logprobs=3),
    SamplingParams(temperature=0, repetition_penalty=1.3, max_tokens=6, prompt_logprobs=2),
    SamplingParams(temperature=0.7, seed=3, min_p=0.1, max_tokens=6),
]
ENGINES: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunks and shared beginnings": {
        "enable_chunked_prefill": True, "max_num_batched_tokens": 8, "enable_prefix_caching": True,
    },
    "swapping": {"num_kv_blocks": 11, "preemption_mode": "swap"},
    "running ahead": {"async_scheduling": True},
    "drafts": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
}  # fmt: skip


@pytest.fixture
def fake_mps() -> Iterator[None]:
    with fake_mps_machine():
        yield


WRONG: dict[str, tuple[type[Exception], Callable[[], object]]] = {
    "float64": (TypeError, lambda: torch.ones(2, device="mps").double()),
    "a generator's float64": (TypeError, lambda: torch.rand(2, dtype=torch.float64, device="mps")),
    "no such operator": (NotImplementedError, lambda: torch.ones(2, 2, device="mps").geqrf()),
    "two devices": (RuntimeError, lambda: torch.ones(2) + torch.ones(2, device="mps")),
    "to MPS, not waiting": (RuntimeError, lambda: torch.ones(2).to("mps", non_blocking=True)),
    "into MPS, not waiting": (
        RuntimeError,
        lambda: torch.ones(2, device="mps").copy_(torch.ones(2), non_blocking=True),
    ),
    "as an array": (TypeError, lambda: torch.ones(2, device="mps").numpy()),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_stand_in_refuses(fake_mps: None, name: str) -> None:
    error, call = WRONG[name]
    with pytest.raises(error):
        call()


@pytest.mark.parametrize("kind", ["qwen3", "llama", "mixtral"])
def test_greedy_answers_are_those_of_hugging_face(tmp_path: Path, kind: str) -> None:
    oracle = Oracle(tmp_path, kind)
    wanted = [oracle.greedy(prompt, 6) for prompt in PROMPTS]
    with fake_mps_machine():
        told = serve(make_engine(oracle, "mps"), [(prompt, GREEDY) for prompt in PROMPTS])
    assert [each["outputs"][0]["token_ids"] for each in told] == wanted


@pytest.mark.parametrize("name", ENGINES)
def test_a_seed_draws_what_it_draws_on_the_cpu(small_oracle: Oracle, name: str) -> None:
    requests = list(zip(PROMPTS, SAMPLED, strict=True))
    wanted = serve(make_engine(small_oracle, "cpu", **ENGINES[name]), requests)
    with fake_mps_machine():
        assert serve(make_engine(small_oracle, "mps", **ENGINES[name]), requests) == wanted


def test_the_model_and_its_cache_lie_on_the_gpu(small_oracle: Oracle, fake_mps: None) -> None:
    runner = make_engine(small_oracle, "mps").runner
    assert all(isinstance(each, MpsTensor) for each in runner.model.state_dict().values())
    assert all(isinstance(each, MpsTensor) for each in (*runner.kv_cache.tensors, runner.batch.last_tokens))


def test_memory_and_budgets_are_those_of_the_cpu(small_oracle: Oracle) -> None:
    """It is the same memory, and other programs want some of it."""
    settings: dict[str, Any] = {"num_kv_blocks": None, "enable_chunked_prefill": True, "max_num_seqs": 10_000}
    with fake_mps_machine():
        core = make_engine(small_oracle, "mps", **settings).core
    on_cpu = make_engine(small_oracle, "cpu", **settings).core
    assert core.config.scheduler_config == on_cpu.config.scheduler_config
    assert core.cache_size == on_cpu.cache_size


REFUSED: dict[str, dict[str, Any]] = {
    "batch_invariant=True": {"batch_invariant": True},
    "quantization='w4a16'": {"quantization": "w4a16"},
    "tensor_parallel_size=2": {"tensor_parallel_size": 2},
    "kv_cache_dtype='int8'": {"kv_cache_dtype": "int8"},
    "speculative_config's 'draft_model'": {
        "speculative_config": {"method": "draft_model", "num_speculative_tokens": 2}
    },
    "speculative_config's 'eagle'": {"speculative_config": {"method": "eagle", "num_speculative_tokens": 2}},
    "speculative_config's 'mtp'": {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}},
    "a model of transformers' layers": {"model_impl": "transformers"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_alone_does_not_compute_is_refused(small_oracle: Oracle, fake_mps: None, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(name)} cannot be computed with device='mps'; do without"):
        make_engine(small_oracle, "mps", **REFUSED[name])


def test_a_machine_without_such_a_gpu_says_so(small_oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(
        ValueError, match=r"^device must exist, got 'mps' where torch .* finds no GPU of a Mac; use dev"
    ):
        make_engine(small_oracle, "mps")
