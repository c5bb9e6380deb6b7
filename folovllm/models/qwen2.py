"""Qwen2 and Qwen2.5: biases on q, k and v. vLLM: model_executor/models/qwen2.py"""

from __future__ import annotations

from typing import Any

from folovllm.models.decoder import DecoderForCausalLM, DecoderSpec


class Qwen2ForCausalLM(DecoderForCausalLM):
    @staticmethod
    def spec(config: Any) -> DecoderSpec:
        return DecoderSpec.from_config(config, qkv_bias=True)
