"""A sliding window: each query sees so many keys, its own among them, in the layers that have one."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from transformers import AutoModelForCausalLM

from folovllm import CacheConfig, LLMEngine, ModelConfig, SamplingParams, SchedulerConfig
from folovllm.attention.backend import Attention
from folovllm.errors import LogitsNotFiniteError
from folovllm.utils.cpu_kernels import unavailable_reason
from tests.helpers import hf_greedy, make_hf_folder

WINDOW = 8
PROMPTS = [[5, 99, 17, 3, 200, 41], [7], list(range(30, 60))]


@pytest.fixture(params=["qwen2", "mistral", "qwen2_moe", "mixtral"])
def folder(request, tmp_path):
    """Qwen's last layer has a window, all of Mistral's have one; the same beside experts."""
    of_qwen = {"use_sliding_window": True, "max_window_layers": 1} if request.param.startswith("qwen2") else {}
    return make_hf_folder(tmp_path, request.param, sliding_window=WINDOW, **of_qwen)


def tokens(folder, max_model_len=64, max_num_batched_tokens=16, **model):
    config = ModelConfig(
        str(folder), dtype="float32", device="cpu", skip_tokenizer_init=True, max_model_len=max_model_len, **model
    )
    cache = CacheConfig(block_size=4, num_kv_blocks=60, enable_prefix_caching=True)
    limits = SchedulerConfig(max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=4, enable_chunked_prefill=True)
    engine, found = LLMEngine(config, cache, limits), {}
    for number, prompt in enumerate(PROMPTS):
        engine.add_request(str(number), {"prompt_token_ids": prompt}, SamplingParams(temperature=0, max_tokens=12))
    while engine.has_unfinished_requests():
        for output in engine.step():
            found[int(output.request_id)] = output.outputs[0].token_ids
    return [found[number] for number in range(len(PROMPTS))]


def oracle_tokens(folder):
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return [hf_greedy(oracle, prompt, 12) for prompt in PROMPTS]


@pytest.mark.parametrize("model", [{}, {"attention_backend": "paged_torch"}, {"batch_invariant": True}])
def test_tokens_behind_a_window_are_hugging_faces(folder, model):
    """The longest prompt is computed in chunks, of which each begins behind keys that its queries do not see."""
    if "batch_invariant" in model and unavailable_reason() is not None:
        pytest.skip("no compiled kernels here")
    assert tokens(folder, **model) == oracle_tokens(folder)


def test_without_the_window_they_are_others(folder, monkeypatch):
    init = Attention.__init__
    monkeypatch.setattr(Attention, "__init__", lambda *args, extras=None: init(*args))
    with suppress(LogitsNotFiniteError):  # blocks behind the window were given back: what is read there may be anything
        assert tokens(folder) != oracle_tokens(folder)


def test_a_window_that_never_cuts_leaves_the_layers_in_one_call(folder):
    config = ModelConfig(str(folder), dtype="float32", skip_tokenizer_init=True, max_model_len=WINDOW)
    assert not any(layer.extras for layer in LLMEngine(config).runner.model.attention_layers)


def test_what_knows_no_window_is_refused_by_name(folder):
    with pytest.raises(ValueError, match=r"^attention_backend 'dense' cannot compute this model: it has no slid"):
        tokens(folder, attention_backend="dense")
