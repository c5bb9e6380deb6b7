def step_sizes(numbers: list[int]) -> list[int]:
    num_tokens, num_seqs, max_blocks, num_ordered = numbers[:4]
    return [num_tokens] * 3 + [num_seqs, num_seqs, num_seqs * max_blocks, max(0, num_ordered)]
