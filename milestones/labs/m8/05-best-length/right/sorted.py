def expected_tokens(alpha: float, k: int) -> float:
    return 1.0 if k == 0 else 1.0 + alpha * expected_tokens(alpha, k - 1)


def best_length(num_seqs: int, alpha: float, most: int, costs: StepCosts) -> int:
    def cost_of_a_token(k: int) -> float:
        tokens = expected_tokens(alpha, k)
        return costs.of_step(num_seqs, k) / tokens

    best = sorted(range(most + 1), key=cost_of_a_token)[0]
    return best * (cost_of_a_token(best) * WORTH <= cost_of_a_token(0))
