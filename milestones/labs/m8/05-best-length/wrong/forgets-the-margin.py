def best_length(num_seqs: int, alpha: float, most: int, costs: StepCosts) -> int:
    def rate(k: int) -> float:
        tokens = expected_tokens(alpha, k)
        return tokens / costs.seconds_of_step(num_seqs, tokens, k)

    return max(range(most + 1), key=rate)
