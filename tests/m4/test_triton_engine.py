"""An engine whose layers are computed by the Triton kernels says what Hugging Face says."""

from __future__ import annotations

import pytest

from folovllm import LLM, SamplingParams
from folovllm.layers.triton_ops import triton_ops
from tests.helpers import hf_greedy, make_hf_folder, make_hf_model
from tests.m4.test_triton_ops import DEVICE, launches  # noqa: F401  a fixture


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_an_engine_with_these_kernels_says_what_hugging_face_says(tmp_path, monkeypatch, launches, kind: str) -> None:  # noqa: F811
    monkeypatch.setattr("folovllm.engine.builder.components.select_ops", lambda *args, **options: triton_ops())
    folder = make_hf_folder(tmp_path, kind, max_position_embeddings=64)
    kernels = {"attention_backend": "triton", "block_size": 8}
    llm = LLM(str(folder), skip_tokenizer_init=True, dtype="float32", device=str(DEVICE), **kernels)
    assert llm.engine.runner.kv_cache.backend.name == "triton"
    prompts = [[5, 100, 7], [1], [9, 8, 7, 6, 5, 4, 3]]
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=6))
    assert "norm_rotary" in launches
    oracle = make_hf_model(kind, max_position_embeddings=64).to(DEVICE)
    assert [output.outputs[0].token_ids for output in outputs] == [hf_greedy(oracle, ids, 6) for ids in prompts]
