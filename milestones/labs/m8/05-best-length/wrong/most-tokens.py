def best_length(num_seqs: int, alpha: float, most: int, costs: StepCosts) -> int:
    def gain(k: int) -> float:
        seconds = costs.seconds_for(num_seqs * (k + 1)) + k * costs.draft_seconds_for(num_seqs)
        plain = (k + 1) * costs.seconds_for(num_seqs)
        return expected_tokens(alpha, k) if seconds < plain else 0.0

    best = max(range(most + 1), key=gain)
    return best if gain(best) > 1 else 0
