"""Shapes to measure without a download: plain data, so that the command line can name them without torch. vLLM: none"""

from __future__ import annotations

from typing import Any

DEFAULT_SHAPE = "qwen3-0.6b"
# Shapes of well-known models, as keywords of their transformers configuration. Speed depends on shapes and
# not on what the weights say, so no download is needed to measure it.
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "max_position_embeddings": 40960,
        "rope_theta": 1e6,
    },
    "qwen3-1.7b": {
        "hidden_size": 2048,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 6144,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "max_position_embeddings": 40960,
        "rope_theta": 1e6,
    },
    # As large as GPT-2 in every respect, and with its vocabulary; the decoder is ours, so SwiGLU has three matrices of
    # 2,048 where GPT-2 has two of 3,072.
    "gpt2-sized": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "head_dim": 64,
        "intermediate_size": 2048,
        "vocab_size": 50257,
        "tie_word_embeddings": True,
        "max_position_embeddings": 1024,
        "rope_theta": 1e4,
    },
    # Not models of anybody's. The first is for a CPU: its float32 weights (118 MB) are more than caches hold, and a
    # prompt of 2,000 tokens takes seconds, not minutes. The second is small enough to try a command out.
    "qwen3-mini": {
        "hidden_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 1536,
        "vocab_size": 8192,
        "tie_word_embeddings": True,
        "max_position_embeddings": 4096,
        "rope_theta": 1e6,
    },
    "qwen3-tiny": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
        "vocab_size": 512,
        "tie_word_embeddings": True,
        "max_position_embeddings": 2048,
        "rope_theta": 1e6,
    },
}
