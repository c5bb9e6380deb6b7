"""The embedded model as a folder: what transformers loads, its tokenizer, its chat template, its two ends of text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import folovllm
from folovllm.model_loader.model_files import EMBEDDED_FOLDER

GENERATES = """
from folovllm import LLM, SamplingParams
print(ascii(LLM().generate("你", SamplingParams(temperature=0, max_tokens=3), use_tqdm=False)[0].outputs[0].text))
"""


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


@pytest.mark.parametrize("encoding", ["ASCII", pytest.param("GBK", marks=pytest.mark.exhaustive)])
def test_an_engine_starts_where_text_is_not_utf_8(encoding: str, tmp_path: Path) -> None:
    """A machine's own encoding is for its terminal; our files and the model's are UTF-8."""
    locale = "C"
    if encoding == "GBK":
        locale = f"zh_CN.{encoding}"
        made = subprocess.run(["localedef", "-f", encoding, "-i", "zh_CN", str(tmp_path / locale)], capture_output=True)
        if made.returncode:
            pytest.skip("localedef makes no such locale here")
    script = tmp_path / "script.py"
    script.write_text(GENERATES, "utf-8")
    encodings = {"LC_ALL": locale, "LOCPATH": str(tmp_path), "PYTHONUTF8": "0", "PYTHONIOENCODING": encoding}
    environment = {**os.environ, **encodings, "PYTHONPATH": str(Path(folovllm.__file__).parents[1])}
    code = f"import locale, runpy; print(locale.getpreferredencoding()); runpy.run_path({str(script)!r})"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, encoding=encoding)
    assert done.returncode == 0, done.stderr
    own, text = done.stdout.split("\n")[:2]
    assert own in ("GBK", "ANSI_X3.4-1968", "US-ASCII")
    assert len(text) > 2
