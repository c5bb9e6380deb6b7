def best_length(num_seqs: int, alpha: float, most: int, costs: StepCosts) -> int:
    draft = costs.draft_seconds_for(num_seqs)

    def rate(k: int) -> float:
        return expected_tokens(alpha, k) / (costs.seconds_for(num_seqs * max(k, 1)) + k * draft)

    return max(range(most + 1), key=rate)
