"""No request waits for a compiler: what it needs has been compiled when the engine is built. Seen on the stand-in for a
CUDA device; and that a warm-up which is left out is seen."""

from __future__ import annotations

import pytest

from folovllm import SamplingParams
from tests.fake_cuda import FakeCuda
from tests.m3.oracle import Oracle
from tests.m4.cuda_support import PROMPTS, make_engine, serve

pytestmark = pytest.mark.slow
KINDS = [
    SamplingParams(temperature=1.0, seed=1, max_tokens=2),  # drawn from logits as they come
    SamplingParams(temperature=1.0, seed=2, max_tokens=2, repetition_penalty=1.3),  # from edited ones
    SamplingParams(temperature=1.0, seed=3, max_tokens=2, top_k=9, logprobs=1, logprobs_mode="processed"),
]


def compiled_while_serving(oracle: Oracle, cuda: FakeCuda) -> set[str]:
    engine = make_engine(oracle, max_num_seqs=2, max_model_len=16, num_kv_blocks=8)
    cuda.reset_counts()
    for params in KINDS:
        serve(engine, [(PROMPTS[1], params)])
    return {kernel for kernel, _ in cuda.compiled}


def test_nothing_is_compiled_while_requests_of_each_kind_are_served(small_oracle: Oracle, fake_cuda: FakeCuda) -> None:
    assert compiled_while_serving(small_oracle, fake_cuda) == set()
