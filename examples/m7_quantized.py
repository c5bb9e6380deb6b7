"""Weights in 8 and in 4 bits: how many bytes are left, and whose tokens come out.

The engine rounds the embedded model's weights while it loads them. Hugging Face's model gets the weights that the codes
mean, in float32, and writes as well; with w8a8 it also rounds what goes into each of these layers.

Run it: python examples/m7_quantized.py
"""

from __future__ import annotations

import _tree  # noqa: F401 - folovllm is this tree's
import torch
from torch import nn

from folovllm import LLM, ModelConfig, SamplingParams
from folovllm.layers.linear import Linear
from folovllm.layers.quantization.codes import round_to_nearest
from folovllm.layers.quantization.linear import round_rows
from folovllm.model_loader import get_model_and_tokenizer
from folovllm.model_loader.quant_scheme import ONLINE, QuantScheme

PROMPT = "Once upon a time there was a little fox who"
LENGTH = 32


def engine(quantization: str | None) -> LLM:
    return LLM(dtype="float32", device="cpu", quantization=quantization)


def write(llm: LLM) -> list[int]:
    params = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
    return llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0].token_ids


def products(llm: LLM) -> list[Linear]:
    """Those of the layers; the embedding and the head stay as they were."""
    return [module for name, module in llm.engine.core.runner.model.named_modules() if name.endswith("_proj")]


def dequantized(scheme: QuantScheme) -> nn.Module:
    """Hugging Face's model, each layer's weight rounded and widened again."""

    def round_input(module: nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        codes, scale = round_rows(args[0].flatten(0, -2))
        return ((codes * scale).view(args[0].shape),)

    model, _ = get_model_and_tokenizer(ModelConfig("embedded", dtype="float32"), "cpu")
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and scheme.of_layer(name) is not None:
            codes = round_to_nearest(
                module.weight.data, bits=scheme.bits, group_size=scheme.group_size, symmetric=scheme.symmetric
            )
            module.weight.data = codes.dequantize()
            if scheme.activation_bits is not None:
                module.register_forward_pre_hook(round_input)
    return model


plain = engine(None)
prompt_ids = plain.get_tokenizer().encode(PROMPT)
number = sum(product.in_features * product.out_features for product in products(plain))
before = write(plain)
print(f"the layers have {number:,} weights: {number * 2:,} bytes in bfloat16")
for quantization in ("w8a8", "w4a16"):
    scheme = ONLINE[quantization]
    llm = engine(quantization)
    size, tokens = sum(product.weight.nbytes for product in products(llm)), write(llm)
    same = sum(a == b for a, b in zip(tokens, before, strict=True))
    print(f"{quantization}: {size:,} bytes, {8 * size / number:.2f} bits a weight; {same} of {LENGTH} tokens as before")
    with torch.inference_mode():
        ids = torch.tensor([prompt_ids])
        expected = dequantized(scheme).generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=LENGTH, max_new_tokens=LENGTH
        )
    agrees = tokens == expected[0, len(prompt_ids) :].tolist()
    print(f"{quantization}: the tokens are those of the weights that the codes mean: {agrees}")
