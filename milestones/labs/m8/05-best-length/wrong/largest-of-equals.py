def best_length(num_seqs: int, alpha: float, most: int, costs: StepCosts) -> int:
    best, found = 0, WORTH / costs.of_step(num_seqs, 0)
    for k in range(1, most + 1):
        tokens = expected_tokens(alpha, k)
        rate = tokens / costs.of_step(num_seqs, k)
        if rate >= found:
            best, found = k, rate
    return best
