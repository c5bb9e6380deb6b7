def expected_tokens(alpha: float, k: int) -> float:
    return 1.0 if k == 0 else 1.0 + alpha * expected_tokens(alpha, k - 1)


def best_length(num_seqs: int, alpha: float, most: int, costs: StepCosts) -> int:
    def seconds_a_token(k: int) -> float:
        tokens = expected_tokens(alpha, k)
        return costs.seconds_of_step(num_seqs, tokens, k) / tokens

    best = sorted(range(most + 1), key=seconds_a_token)[0]
    return best * (seconds_a_token(best) * WORTH <= seconds_a_token(0))
