def _ends_with_next_token(seq: Sequence, max_model_len: int) -> bool:
    max_tokens = seq.sampling_params.max_tokens
    by_params = max_tokens is not None and seq.get_output_len() >= max_tokens
    return by_params or seq.get_len() >= max_model_len
