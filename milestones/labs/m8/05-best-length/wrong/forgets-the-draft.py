def best_length(num_seqs: int, alpha: float, most: int, costs: StepCosts) -> int:
    def rate(k: int) -> float:
        return expected_tokens(alpha, k) / (1 + num_seqs * (k + 1) / costs.ridge)

    best = max(range(most + 1), key=rate)
    return best if rate(best) >= WORTH * rate(0) else 0
