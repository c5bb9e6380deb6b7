def expected_tokens(alpha: float, k: int) -> float:
    return 1.0 if k == 0 else 1.0 + alpha * expected_tokens(alpha, k - 1)


def best_length(num_seqs: int, alpha: float, most: int, costs: StepCosts) -> int:
    def seconds_a_token(k: int) -> float:
        seconds = costs.seconds_for(num_seqs * (k + 1)) + k * costs.draft_seconds_for(num_seqs)
        return seconds / expected_tokens(alpha, k)

    return sorted(range(most + 1), key=seconds_a_token)[0]
