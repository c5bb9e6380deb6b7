def best_length(num_seqs: int, alpha: float, most: int, costs: StepCosts) -> int:
    def rate(k: int) -> float:
        draft = costs.draft_seconds_for(num_seqs * k) if k else 0.0
        return expected_tokens(alpha, k) / (costs.seconds_for(num_seqs * (k + 1)) + draft)

    return max(range(most + 1), key=rate)
