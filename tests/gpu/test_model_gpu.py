"""Qwen3-0.6B's shape end to end in bfloat16: what the engine says is what Hugging Face finds likeliest, or as good as.

Two computations in bfloat16 round differently, so greedy answers part where two tokens are nearly as likely. How near
is near is not chosen here: it is what Hugging Face's own bfloat16 logits are off, against its float32 ones on the same
weights and the same text.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.qwen3 import Qwen3Config

from folovllm import LLM, SamplingParams
from tests.gpu.places import Place, on_every_place

QWEN3_06B: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1e6,
}
TINY: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "rope_theta": 1e6,
}


def make_model(shape: dict[str, Any], device: str, folder: Path, std: float) -> Any:
    """Random weights, wide enough that answers wander and do not repeat one token."""
    config = Qwen3Config(**shape, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator, device=device) * std
            parameter.copy_(1.0 + noise if "norm" in name else noise)
    model.tie_weights()
    model.save_pretrained(folder)
    return model.eval()


@torch.inference_mode()
def logits_of(model: Any, text: list[int], count: int) -> torch.Tensor:
    """[count, vocab] float32: what the model said before each of the last `count` tokens."""
    ids = torch.tensor([text], device=model.device)
    return model(ids).logits[0, -count - 1 : -1].float()


@on_every_place
@pytest.mark.parametrize("enforce_eager", [False, True], ids=["graphs", "eager"])
def test_every_token_is_the_likeliest_but_for_rounding(tmp_path: Path, place: Place, enforce_eager: bool) -> None:
    shape = QWEN3_06B if place.full else TINY
    vocab = shape["vocab_size"]
    hf = make_model(shape, place.device, tmp_path, std=0.1 if place.full else 0.2)
    rng = random.Random(0)
    lengths = [1, 17, 64, 300, 1000, 33] if place.full else [1, 17, 40]
    prompts = [[rng.randrange(vocab) for _ in range(length)] for length in lengths]
    llm = LLM(
        str(tmp_path), skip_tokenizer_init=True, dtype="bfloat16", device=place.device, enforce_eager=enforce_eager,
        num_kv_blocks=200, max_num_seqs=8, max_model_len=1100,
    )  # fmt: skip
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=32, ignore_eos=True), use_tqdm=False)
    answers = [output.outputs[0].token_ids for output in outputs]
    assert len(set(answers[-1])) > 8  # it wanders: a wrong position or a wrong cache entry would show
    del llm
    texts = [prompt + said for prompt, said in zip(prompts, answers, strict=True)]
    rounded = [logits_of(hf, text, 32) for text in texts]
    exact_model = hf.float()
    exact = [logits_of(exact_model, text, 32) for text in texts]
    behind, likeliest = [], 0
    for said, want in zip(answers, exact, strict=True):
        chosen = want.gather(1, torch.tensor(said, device=want.device)[:, None])[:, 0]
        behind.append((want.max(-1).values - chosen).max())
        likeliest += int((want.argmax(-1).cpu() == torch.tensor(said)).sum())
    off = torch.stack([(a - b).abs().max() for a, b in zip(rounded, exact, strict=True)]).max()
    spread = torch.stack([want.std() for want in exact]).mean()
    assert float(off) < float(spread) / 2  # an allowance that excuses anything would prove nothing
    assert float(torch.stack(behind).max()) <= float(off)
    assert likeliest > 0.6 * 32 * len(prompts)  # on a CPU it was 29 of 36
