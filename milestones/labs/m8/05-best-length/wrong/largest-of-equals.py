def best_length(num_seqs: int, alpha: float, most: int, costs: StepCosts) -> int:
    best, found = 0, 0.0
    for k in range(most + 1):
        seconds = costs.seconds_for(num_seqs * (k + 1)) + k * costs.draft_seconds_for(num_seqs)
        rate = expected_tokens(alpha, k) / seconds
        if rate >= found:
            best, found = k, rate
    return best
