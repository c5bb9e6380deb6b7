"""A quantised model's greedy tokens in float32 are Hugging Face's on the weights that the codes mean."""

from __future__ import annotations

import pytest

from folovllm import LLM
from tests.helpers import hf_greedy
from tests.m4.cpu_target import NEEDS_KERNELS
from tests.m7.support import FOLDERS, NAMES, PROMPTS, generate, oracle


def engine(name, **kwargs):
    return LLM(FOLDERS / name, dtype="float32", device="cpu", skip_tokenizer_init=True, **kwargs)


@pytest.fixture(scope="module")
def expected():
    """By the folder's name, made once."""
    made = {}

    def of(name):
        if name not in made:
            model = oracle(FOLDERS / name)
            made[name] = [hf_greedy(model, ids, 16) for ids in PROMPTS]
        return made[name]

    return of


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_hugging_faces(name, expected):
    assert generate(engine(name)) == expected(name)


@pytest.mark.parametrize("name", ["gptq-4-bits", "awq", "int-quantized"])
@pytest.mark.parametrize(
    "options",
    [
        {"enforce_eager": True},
        {"max_num_batched_tokens": 8},
        {"num_kv_blocks": 5, "preemption_mode": "recompute"},
        {"num_kv_blocks": 5, "preemption_mode": "swap"},
        pytest.param({"batch_invariant": True}, marks=NEEDS_KERNELS),
        {"enable_prefix_caching": False, "enable_chunked_prefill": False},
    ],
    ids=["eager", "chunks", "recompute", "swap", "invariant", "whole-prompts"],
)
def test_tokens_stay_the_same_whatever_the_schedule_is(name, options, expected):
    assert generate(engine(name, **options)) == expected(name)


@pytest.mark.parametrize("name", ["gptq-8-bits", "pack-quantized-asymmetric", "int-quantized"])
def test_without_a_compiler_tokens_are_the_same(name, expected, monkeypatch):
    monkeypatch.setenv("FOLOVLLM_CPU_KERNELS", "no")
    assert generate(engine(name)) == expected(name)
