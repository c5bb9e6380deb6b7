def best_length(num_seqs: int, alpha: float, most: int, costs: StepCosts) -> int:
    best, found = 0, WORTH / costs.seconds_of_step(num_seqs, 1.0, 0)
    for k in range(1, most + 1):
        tokens = expected_tokens(alpha, k)
        rate = tokens / costs.seconds_of_step(num_seqs, tokens, k)
        if rate >= found:
            best, found = k, rate
    return best
