"""A sliding window that never cuts: the model runs up to the window's length, and no further."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, MistralConfig

from folovllm import LLMEngine, ModelConfig, ModelLoadError, SamplingParams
from folovllm.models.weights import build_model
from tests.helpers import hf_greedy, make_hf_folder, tiny_hf_config

PROMPT = [5, 99, 17, 3, 200, 41]


def tokens(folder, max_tokens, max_model_len):
    config = ModelConfig(
        str(folder), dtype="float32", device="cpu", skip_tokenizer_init=True, max_model_len=max_model_len
    )
    engine = LLMEngine(config)
    engine.add_request("r", {"prompt_token_ids": PROMPT}, SamplingParams(temperature=0, max_tokens=max_tokens))
    while engine.has_unfinished_requests():
        outputs = engine.step()
    return outputs[0].outputs[0].token_ids


@pytest.mark.parametrize("kind", ["qwen2", "mistral"])
def test_a_sliding_window_runs_within_it(kind, tmp_path):
    """Up to its last position: a token sees as many as the window has, itself among them."""
    window = 32
    if kind == "qwen2":
        over = {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 1}
        folder = make_hf_folder(tmp_path, "qwen2", **over)
    else:
        values = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "eos_token_id": None, "bos_token_id": None}
        folder = tmp_path / "mistral"
        config = MistralConfig(**values, **heads, max_position_embeddings=512, sliding_window=window)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    more = window - len(PROMPT)
    assert tokens(folder, more, window) == hf_greedy(oracle, PROMPT, more)
    with pytest.raises(ModelLoadError, match=rf"sliding_window={window}; set max_model_len to {window} or less"):
        tokens(folder, 1, window + 1)


def test_a_sliding_window_that_cuts_is_refused_by_name():
    config = tiny_hf_config("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=0)
    config.architectures = ["Qwen2ForCausalLM"]
    with pytest.raises(ValueError, match="sliding_window attention is not supported"):
        build_model(config, 256, torch.float32, torch.device("cpu"), None)
