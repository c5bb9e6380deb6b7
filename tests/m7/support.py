"""Shared by the tests of quantised weights.

folders/ holds a small Qwen3 in each way of storing, with weights of float16. The packages that people quantise with
made them: compressed-tensors 0.20, GPTQModel 7.7 (its pack_original) and AutoAWQ 0.2.9 (its WQLinear_GEMM). Beside each
checkpoint lies what the same package takes its codes for: dequantized.weights, in float16.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from folovllm import LLM, ModelConfig, SamplingParams
from folovllm.layers.linear import PLAIN
from folovllm.layers.ops import LayerOps
from folovllm.layers.quantization.codes import Codes
from folovllm.layers.quantization.linear import QuantizedLinear, QuantizedLinears, round_rows
from folovllm.model_loader.hf_config import load_hf_config
from folovllm.model_loader.quant_scheme import select_scheme
from folovllm.models.decoder import DecoderForCausalLM
from folovllm.models.weights import build_model

FOLDERS = Path(__file__).parent / "folders"
NAMES = sorted(folder.name for folder in FOLDERS.iterdir())
PROMPTS = [[5, 99, 17, 3, 100, 41], [7, 7, 1], list(range(20, 60))]


def dequantized(name: str) -> dict[str, torch.Tensor]:
    """By the package that wrote the folder: module's name + ".weight" -> float16 [out, in]."""
    return load_file(FOLDERS / name / "dequantized.weights")


class Keeping(QuantizedLinear):
    """Remembers the codes that it read."""

    def keep(self, layer: Any, codes: Codes) -> None:
        layer.codes = codes
        super().keep(layer, codes)


def read(folder: Path, dtype: torch.dtype = torch.float32) -> DecoderForCausalLM:
    """The folder's model in plain torch; its quantised layers have `codes`."""
    config = ModelConfig(str(folder))
    hf_config = load_hf_config(config)
    scheme = select_scheme(config, getattr(hf_config, "quantization_config", None))
    assert scheme is not None
    ops = LayerOps(QuantizedLinears(scheme, Keeping, PLAIN))
    return build_model(hf_config, 128, dtype, torch.device("cpu"), folder, ops=ops)


def oracle(folder: Path, ranks: int = 1) -> torch.nn.Module:
    """Hugging Face's model in float32 with the weights that the codes mean. Where activations are rounded, it rounds
    what goes into each quantised layer; into one that is cut by inputs, as so many ranks do, each its equal share."""
    config = AutoConfig.from_pretrained(folder)
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    stored, ours = load_file(folder / "model.safetensors"), read(folder)
    weights = {name: stored[name].float() for name in model.state_dict() if name in stored}
    for path, layer in ours.named_modules():
        if hasattr(layer, "codes"):
            parts = layer.codes.dequantize().split(list(layer.parts.values()))
            for part, weight in zip(layer.parts, parts, strict=True):
                name = f"{path.rpartition('.')[0]}.{part}" if part else path
                weights[f"{name}.weight"] = weight
                if layer.method.scheme.activation_bits is not None:
                    shares = ranks if name.endswith(("o_proj", "down_proj")) else 1
                    model.get_submodule(name).register_forward_pre_hook(partial(_round_input, shares=shares))
    if config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)
    return model


def _round_input(module: torch.nn.Module, args: tuple[torch.Tensor], shares: int) -> tuple[torch.Tensor]:
    (x,) = args
    codes, scale = round_rows(x.unflatten(-1, (shares, -1)).flatten(0, -2))
    return ((codes * scale).view(x.shape),)


def generate(llm: LLM, max_tokens: int = 16) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]
