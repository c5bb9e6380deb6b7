def in_prefill(seq: Sequence) -> bool:
    return seq.get_output_len() == 0
