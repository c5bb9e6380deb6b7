def kv_bytes_per_token(spec: DecoderSpec, dtype: torch.dtype) -> int:
    return 2 * spec.num_layers * spec.num_kv_heads * spec.head_size * 2
