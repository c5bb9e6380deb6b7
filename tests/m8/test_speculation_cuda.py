"""Guesses on the stand-in for a GPU, where a kernel draws and steps without guesses are replayed from graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from folovllm import LLM, SamplingParams
from tests.fake_cuda import FakeCuda
from tests.helpers import make_hf_folder
from tests.m8.support import Prophet, guess_always
from tests.m8.test_speculation_engine import answers_of

pytest.importorskip("triton")
pytestmark = pytest.mark.slow  # interpreted: some seconds each
SMALL: dict[str, Any] = {
    "skip_tokenizer_init": True, "dtype": "float32", "max_num_seqs": 2, "max_model_len": 16, "num_kv_blocks": 8,
    "block_size": 4, "max_num_batched_tokens": 8, "swap_space": 0.001, "device": "cuda",
}  # fmt: skip
PROMPTS = [[5, 9, 17], [7, 7, 1, 30, 2]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hf_folder(
        tmp_path_factory.mktemp("model"), num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1
    )


@pytest.mark.parametrize(
    "params", [{"temperature": 0.0}, {"seed": 3, "top_k": 9, "logprobs": 2}], ids=["greedy", "seeded"]
)
def test_tokens_are_those_without_guesses(folder: Path, fake_cuda: FakeCuda, params: dict[str, Any]) -> None:
    asked = SamplingParams(max_tokens=6, ignore_eos=True, **params)
    plain = LLM(str(folder), **SMALL).generate(PROMPTS, asked, use_tqdm=False)
    llm = LLM(str(folder), speculative_config={"method": "ngram", "num_speculative_tokens": 3}, **SMALL)
    guess_always(llm.engine, Prophet(answers_of(plain)))
    fake_cuda.reset_counts()
    guessed = llm.generate(PROMPTS, asked, use_tqdm=False)
    for one, other in zip(plain, guessed, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        assert [list(entry) for entry in one.outputs[0].logprobs or ()] == [
            list(entry) for entry in other.outputs[0].logprobs or ()
        ]
    assert sum(llm.engine.scheduler.num_accepted_per_pos) >= 4
    assert fake_cuda.compiled == []


@pytest.mark.exhaustive
def test_a_draft_model_guesses_there_too(folder: Path, fake_cuda: FakeCuda) -> None:
    """It is the model itself, so that all guesses are right: 1 token comes with the prompt, then 4, then 1."""
    asked = SamplingParams(max_tokens=6, ignore_eos=True, temperature=0)
    plain = LLM(str(folder), **SMALL).generate(PROMPTS[:1], asked, use_tqdm=False)
    speculative = {"method": "draft_model", "num_speculative_tokens": 3, "model": str(folder)}
    llm = LLM(str(folder), speculative_config=speculative, **SMALL)
    guess_always(llm.engine)
    fake_cuda.reset_counts()
    guessed = llm.generate(PROMPTS[:1], asked, use_tqdm=False)
    assert guessed[0].outputs[0].token_ids == plain[0].outputs[0].token_ids
    assert llm.engine.stats().steps == 3
    assert fake_cuda.compiled == []
