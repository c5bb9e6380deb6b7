"""Qwen3 (dense): no biases; q and k are normalised per head. vLLM: model_executor/models/qwen3.py"""

from __future__ import annotations

from typing import Any

from folovllm.models.decoder import DecoderForCausalLM, DecoderSpec


class Qwen3ForCausalLM(DecoderForCausalLM):
    @staticmethod
    def spec(config: Any) -> DecoderSpec:
        bias = config.attention_bias
        return DecoderSpec.from_config(config, qk_norm=True, qkv_bias=bias, o_bias=bias)
