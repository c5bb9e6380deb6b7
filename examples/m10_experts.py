"""A model with 32 experts a layer, of which each token goes through 4: how many of them a step reads.

Its weights are random. Run it: python examples/m10_experts.py
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator

import _tree  # noqa: F401 - folovllm is this tree's
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.utils import logging

from folovllm import LLM, SamplingParams
from folovllm.layers.moe import Experts

PROMPT, NEW = 12, 12
CONFIG = Qwen3MoeConfig(
    vocab_size=512, hidden_size=64, intermediate_size=128, moe_intermediate_size=32, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=2, num_experts=32, num_experts_per_tok=4,
    norm_topk_prob=True, max_position_embeddings=128, initializer_range=0.2, eos_token_id=None,
)  # fmt: skip


@contextlib.contextmanager
def random_model() -> Iterator[tuple[Qwen3MoeForCausalLM, LLM]]:
    """transformers' own, and ours on the same weights. enforce_eager: layers are modules, which can be watched."""
    torch.manual_seed(0)
    logging.disable_progress_bar()
    model = Qwen3MoeForCausalLM(CONFIG).eval()
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.redirect_stderr(io.StringIO()):
            model.save_pretrained(folder)
        yield model, LLM(folder, dtype="float32", device="cpu", skip_tokenizer_init=True, enforce_eager=True)


def watch(llm: LLM, read: list[int]) -> None:
    """From now on `read` gets, of each layer in each step, how many experts it read."""
    for module in llm.engine.runner.model.modules():
        if isinstance(module, Experts):
            module.register_forward_hook(lambda _, inputs, output: read.append(len(inputs[1].experts.unique())))


with random_model() as (model, llm):
    spec = llm.engine.runner.model.decoder_spec.experts
    read: list[int] = []
    watch(llm, read)
    prompts = torch.randint(0, CONFIG.vocab_size, (32, PROMPT), generator=torch.Generator().manual_seed(1))
    greedy = {"do_sample": False, "max_new_tokens": NEW, "pad_token_id": 0}
    expected = model.generate(prompts, attention_mask=torch.ones_like(prompts), **greedy)[:, PROMPT:].tolist()
    params, same = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True), True
    print(f"{CONFIG.num_hidden_layers} layers of {spec.num_experts} experts, {spec.top_k} a token")
    for count in (1, 2, 4, 8, 16, 32):
        outputs = llm.generate(prompts[:count].tolist(), params, use_tqdm=False)
        same &= [output.outputs[0].token_ids for output in outputs] == expected[:count]
        decodes = read[CONFIG.num_hidden_layers :]  # all but the first step, which computes the prompts
        mean, expectation = sum(decodes) / len(decodes), spec.experts_read(count)
        print(f"{count:2} sequences: a step reads {mean:4.1f} experts of a layer; at random {expectation:4.1f}")
        read.clear()
    print(f"the same tokens as transformers: {same}")
