"""Llama 2 and 3.x, and Mistral without its sliding window: the plain decoder. vLLM: model_executor/models/llama.py"""

from __future__ import annotations

from typing import Any

from folovllm.models.decoder import DecoderForCausalLM, DecoderSpec


class LlamaForCausalLM(DecoderForCausalLM):
    @staticmethod
    def spec(config: Any) -> DecoderSpec:
        bias = getattr(config, "attention_bias", False)  # Mistral's configuration has neither field
        return DecoderSpec.from_config(config, qkv_bias=bias, o_bias=bias, mlp_bias=getattr(config, "mlp_bias", False))
