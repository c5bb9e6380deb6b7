"""The embedded model as a folder: what transformers loads, its tokenizer, its chat template, its two ends of text."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from folovllm.model_files import EMBEDDED_FOLDER


def test_folder_is_two_to_six_megabytes() -> None:
    size = sum(path.stat().st_size for path in EMBEDDED_FOLDER.iterdir())
    assert 2e6 < size < 6e6


def test_weights_are_bfloat16_and_load_as_they_are() -> None:
    model = AutoModelForCausalLM.from_pretrained(EMBEDDED_FOLDER)
    assert model.config.architectures == ["Qwen3ForCausalLM"]
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.config.num_attention_heads % model.config.num_key_value_heads == 0


def test_vocabulary_is_as_large_as_the_tokenizer_says() -> None:
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_FOLDER)
    assert json.loads((EMBEDDED_FOLDER / "config.json").read_text())["vocab_size"] == len(tokenizer)


def test_both_ends_of_text_stop_generation() -> None:
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_FOLDER)
    ends = json.loads((EMBEDDED_FOLDER / "generation_config.json").read_text())["eos_token_id"]
    assert tokenizer.convert_ids_to_tokens(ends) == ["<|im_end|>", "<|endoftext|>"]
    assert tokenizer.eos_token == "<|im_end|>"


@pytest.mark.parametrize("text", ["KV cache", "分页注意力与块表。", "naïve 🔥 龘", " a\n\n  b\t", "<|im_start|>"])
def test_every_text_survives_the_tokenizer(text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_FOLDER)
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_chat_template_writes_the_form_it_was_trained_on() -> None:
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_FOLDER)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == ("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
