"""Tiny random models of many of transformers' types, and what the engine and generate() make of the same prompts.

A prompt goes in as a request, and its tokens come out through chunks of prompts, hits of the prefix cache, preemptions
and forks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from folovllm import CacheConfig, LLMEngine, ModelConfig, SamplingParams, SchedulerConfig
from folovllm.model_loader.hf_config import load_hf_config
from folovllm.models.registry import model_spec
from folovllm.worker.kv_cache import kv_cache_groups

NO_ENDS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
BASE: dict[str, Any] = {
    **NO_ENDS, "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 512,
}  # fmt: skip
LLAMA = {**BASE, "intermediate_size": 96, "num_key_value_heads": 2}
HEADS = {**LLAMA, "head_dim": 16}
WINDOWS = {"sliding_window": 16, "num_hidden_layers": 4}
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}
# model_type -> the fields of its configuration. The first are in `make test`, the others are exhaustive.
TYPES: dict[str, dict[str, Any]] = {
    "gpt2": BASE,
    "gemma2": {**HEADS, **WINDOWS, "query_pre_attn_scalar": 24},
    "gpt_oss": {**HEADS, **WINDOWS, "num_local_experts": 4, "num_experts_per_tok": 2},
    "mixtral": {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
    "gemma3_text": {**HEADS, **WINDOWS, "num_hidden_layers": 6, "query_pre_attn_scalar": 24},
    "phi3": {**LLAMA, "sliding_window": 20},
    "qwen3_moe": {**HEADS, **EXPERTS},
    "stablelm": LLAMA,
    "diffllama": LLAMA,
    "deepseek_v3": {
        **BASE, "intermediate_size": 96, "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4, "q_lora_rank": 24,
        "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    },
    "olmo2": LLAMA,
    "cohere": LLAMA,
    "cohere2": {**LLAMA, **WINDOWS},
    "ernie4_5": HEADS,
    "exaone4": {**LLAMA, **WINDOWS},
    "glm4": {**HEADS, "eos_token_id": None},
    "gpt_neox": {**BASE, "intermediate_size": 96},
    "granite": {
        **LLAMA, "logits_scaling": 3.0, "attention_multiplier": 0.1, "residual_multiplier": 0.7,
        "embedding_multiplier": 2.0,
    },
    "llama": LLAMA,
    "olmo3": {**LLAMA, **WINDOWS},
    "opt": {**BASE, "ffn_dim": 96, "word_embed_proj_dim": 64},
    "qwen2_moe": {**LLAMA, **EXPERTS, "shared_expert_intermediate_size": 32},
    "qwen3": HEADS,
    "smollm3": LLAMA,
    "starcoder2": {**LLAMA, "sliding_window": 16},
}  # fmt: skip
REFUSED: dict[str, dict[str, Any]] = {
    "bloom": BASE,
    "falcon": {**BASE, "num_kv_heads": 2, "new_decoder_architecture": True},
    "gptj": {**BASE, "rotary_dim": 8},
    "mamba": {**NO_ENDS, "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2},
    "mpt": {**NO_ENDS, "vocab_size": 256, "d_model": 64, "n_heads": 4, "n_layers": 3, "max_seq_len": 512},
    "qwen3_next": {
        **HEADS, **EXPERTS, "num_hidden_layers": 4, "shared_expert_intermediate_size": 32,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    },
}  # fmt: skip
MAX_MODEL_LEN = 128
NEW_TOKENS = 12


def config_of(model_type: str) -> Any:
    return transformers.AutoConfig.for_model(model_type, **{**TYPES, **REFUSED}[model_type])


def make_model(model_type: str) -> Any:
    """Random weights, of which norms are near to one, so that tokens differ. Attention is computed step by step."""
    config = config_of(model_type)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator) * 0.15
            is_norm = ("norm" in name or "ln_" in name) and "weight" in name
            parameter.copy_(1 + noise if is_norm and not model_type.startswith("gemma") else noise)
    model.tie_weights()
    model.generation_config = transformers.GenerationConfig(eos_token_id=None, pad_token_id=0)
    return model.float().eval()


def make_prompts() -> list[list[int]]:
    """Four that begin with the same 24 tokens, and three others."""
    generator = torch.Generator().manual_seed(1)

    def draw(count: int) -> list[int]:
        return [int(each) for each in torch.randint(1, 250, (count,), generator=generator)]

    prefix = draw(24)
    return [prefix + draw(count) for count in (3, 17, 9, 30)] + [draw(count) for count in (1, 5, 40)]


@dataclass
class Run:
    """What the engine made of each prompt, in two rounds, and whether what should happen meanwhile did."""

    tokens: list[list[list[int]]]
    logprobs: list[list[list[float]]]
    preemptions: int
    hits: int


def run_engine(folder: str | Path, prompts: list[list[int]], **model: Any) -> Run:
    """Steps of 16 tokens of at most 6 sequences, in as many blocks of 4 tokens as the longest may need:
    prompts come in chunks, sequences are preempted, and the second round finds what the first one has computed. The
    second prompt is asked for twice. Where layers have windows, the longest fits only because their keys are freed."""
    settings = {"dtype": "float32", "device": "cpu", "max_model_len": MAX_MODEL_LEN, "skip_tokenizer_init": True}
    config = ModelConfig(str(folder), **{**settings, "model_impl": "transformers", **model})
    limits = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=6, enable_chunked_prefill=True)
    spec = model_spec(config.model_impl, load_hf_config(config), MAX_MODEL_LEN)
    groups = kv_cache_groups(spec, limits, block_size=4)
    num_blocks = groups.most_blocks(max(map(len, prompts)) + NEW_TOKENS)
    engine = LLMEngine(config, CacheConfig(4, num_kv_blocks=num_blocks, enable_prefix_caching=True), limits)
    found: dict[str, list[Any]] = {}
    for turn in range(2):
        for number, prompt in enumerate(prompts):
            count = 2 if number == 1 else 1  # forks of one prompt, which write into copies of a shared block
            params = SamplingParams(max_tokens=NEW_TOKENS, top_k=1, n=count, logprobs=1, ignore_eos=True)
            engine.add_request(f"{turn}-{number}", {"prompt_token_ids": prompt}, params)
        while engine.has_unfinished_requests():
            found |= {each.request_id: each.outputs for each in engine.step() if each.finished}
            engine.scheduler.check_invariants()
    outputs = [[found[f"{turn}-{number}"] for number in range(len(prompts))] for turn in range(2)]
    for first, second in (of_turn[1] for of_turn in outputs):
        if first.token_ids != second.token_ids:
            raise RuntimeError(f"forks of one prompt have other tokens: {first.token_ids} and {second.token_ids}")
    tokens = [[list(each[0].token_ids) for each in of_turn] for of_turn in outputs]
    logprobs = [
        [[at[token].logprob for at, token in zip(one[0].logprobs, one[0].token_ids, strict=True)] for one in of_turn]
        for of_turn in outputs
    ]
    scheduler = engine.scheduler
    return Run(tokens, logprobs, scheduler.preempter.num_recomputed, scheduler.kv.num_hits)


@torch.inference_mode()
def generate(model: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS)
    return [int(each) for each in out[0, len(prompt) :]]


@torch.inference_mode()
def logprobs_of(model: Any, prompt: list[int], tokens: list[int]) -> list[float]:
    """Of each of `tokens` behind `prompt`, by one forward."""
    logits = model(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :].float()
    return [float(of_token[token]) for of_token, token in zip(logits.log_softmax(-1), tokens, strict=True)]
