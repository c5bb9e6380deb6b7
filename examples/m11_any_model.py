"""Any decoder of transformers in our engine: its own modelling code, our paged attention.

    python examples/m11_any_model.py gpt2
    python examples/m11_any_model.py gemma2 gpt_oss mixtral        # a window and a soft-cap, sinks, experts
    python examples/m11_any_model.py bloom                         # refused, with the reason

A small model of that type gets random weights, so nothing is downloaded and its text is noise. The engine's greedy
tokens are compared with those of transformers' generate(). Prompts come in chunks and share cached blocks.
"""

from __future__ import annotations

import sys
import tempfile

import _tree  # noqa: F401 - folovllm is this tree's
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging

from folovllm import LLM, SamplingParams
from folovllm.errors import ModelLoadError
from folovllm.models.transformers_model import transformers_spec

# transformers answers to these names for GPT-2's n_embd and the like. A type gets those that it knows.
SMALL = {
    "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 96, "max_position_embeddings": 256, "sliding_window": 16,
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
PREFIX = list(range(20, 60))
PROMPTS = [[*PREFIX, 7, 1], [*PREFIX, 9], [5, 99, 17]]
NEW_TOKENS, LONGEST = 16, 128


def main(model_types: list[str]) -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    for model_type in model_types:
        try:
            print(f"{model_type}: {compare(model_type)}")
        except ModelLoadError as error:
            print(f"{model_type}: refused. {error}")


def compare(model_type: str) -> str:
    known = AutoConfig.for_model(model_type)
    config = AutoConfig.for_model(model_type, **{name: SMALL[name] for name in SMALL if hasattr(known, name)})
    layers = transformers_spec(config, LONGEST).layers  # one token on the meta device, before there are weights
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.generation_config = GenerationConfig(eos_token_id=None, pad_token_id=0)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        llm = LLM(
            folder, model_impl="transformers", dtype="float32", device="cpu", max_model_len=LONGEST,
            skip_tokenizer_init=True, max_num_batched_tokens=16, block_size=8,
        )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    llm.generate(PROMPTS[:1], params, use_tqdm=False)  # leaves its blocks in the prefix cache
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    same = sum(list(each.outputs[0].token_ids) == generate(model, each.prompt_token_ids) for each in outputs)
    groups = llm.engine.config.kv_cache_groups
    held = " + ".join(str(groups.most_in_group(group, LONGEST)) for group in range(len(groups.windows)))
    extras = sorted({name for layer in layers for name, value in vars(layer.extras).items() if value is not None})
    return (
        f"{len(layers)} layers, {layers[0].num_heads} heads on {layers[0].num_kv_heads} of {layers[0].head_size}"
        f"{', ' + ' and '.join(extras) if extras else ''}; {same} of {len(outputs)} answers are generate()'s, "
        f"{sum(each.num_cached_tokens for each in outputs)} prompt tokens came from the cache; {LONGEST} tokens take "
        f"{held} blocks"
    )


@torch.inference_mode()
def generate(model: torch.nn.Module, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS)
    return [int(each) for each in out[0, len(prompt) :]]


if __name__ == "__main__":
    main(sys.argv[1:] or ["gpt2"])
