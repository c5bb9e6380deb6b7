"""Load Hugging Face's own model, the oracle that everything later is compared with, and let it generate.

A small random model is made on the spot, saved as a folder and loaded again; where the package has its
embedded model, that one answers a question too. No download.

Run it: python examples/m0_oracle.py
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import _tree  # noqa: F401 - folovllm is this tree's

os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # read when transformers is imported

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from folovllm import ModelConfig, ModelLoadError, get_model_and_tokenizer
from folovllm.model_loader import resolve_max_model_len
from folovllm.model_loader.hf_config import load_hf_config
from folovllm.model_loader.model_files import EMBEDDED_FOLDER


def make_random_model(folder: Path) -> None:
    """Two layers of Qwen3's architecture with random weights, saved as a Hugging Face folder."""
    torch.manual_seed(0)
    # Larger random weights than usual: with the usual ones greedy output repeats a single token.
    shape = Qwen3Config(vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                        num_attention_heads=4, num_key_value_heads=2, head_dim=16, initializer_range=0.2,
                        max_position_embeddings=512)  # fmt: skip
    AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16).save_pretrained(folder)


def random_model(folder: Path) -> None:
    make_random_model(folder)
    # The folder has no tokenizer, so prompts are token ids.
    config = ModelConfig(str(folder), skip_tokenizer_init=True, device="cpu")
    model, _ = get_model_and_tokenizer(config)
    # The file is bfloat16. "auto" keeps that where the CPU multiplies bfloat16, and takes float32 elsewhere.
    print(f"dtype {model.dtype}, {sum(p.numel() for p in model.parameters()):,} parameters, "
          f"max_model_len {resolve_max_model_len(load_hf_config(config), None)}")  # fmt: skip
    prompt = torch.tensor([[1, 2, 3]])
    out = model.generate(prompt, max_new_tokens=12, do_sample=False, pad_token_id=0)
    print(f"greedy continuation of [1, 2, 3]: {out[0, 3:].tolist()}")

    (folder / "model.safetensors").unlink()
    try:
        get_model_and_tokenizer(config)
    except ModelLoadError as error:
        print(f"without its weights: {str(error).replace(str(folder), 'FOLDER')}")


def embedded_model() -> None:
    model, tokenizer = get_model_and_tokenizer(ModelConfig("embedded", device="cpu"))
    if tokenizer is None:
        return
    question = [{"role": "user", "content": "What is prefix caching?"}]
    inputs = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt")
    inputs = inputs if isinstance(inputs, torch.Tensor) else inputs["input_ids"]
    out = model.generate(inputs, max_new_tokens=80, do_sample=False)
    print(f"embedded model, {question[0]['content']!r}:")
    print(tokenizer.decode(out[0, inputs.shape[1] :], skip_special_tokens=True))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        random_model(Path(folder) / "model")
    if (EMBEDDED_FOLDER / "model.safetensors").exists():
        embedded_model()


if __name__ == "__main__":
    main()
