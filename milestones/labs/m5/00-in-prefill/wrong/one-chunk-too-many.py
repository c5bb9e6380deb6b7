def in_prefill(seq: Sequence) -> bool:
    return seq.num_computed_tokens <= seq.get_prompt_len()
