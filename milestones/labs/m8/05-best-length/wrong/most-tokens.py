def best_length(num_seqs: int, alpha: float, most: int, costs: StepCosts) -> int:
    return max(range(most + 1), key=lambda k: expected_tokens(alpha, k))
