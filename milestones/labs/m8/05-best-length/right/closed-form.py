def expected_tokens(alpha: float, k: int) -> float:
    return k + 1 if alpha == 1 else (1 - alpha ** (k + 1)) / (1 - alpha)


def best_length(num_seqs: int, alpha: float, most: int, costs: StepCosts) -> int:
    best, found = 0, 0.0
    tokens, plain = 0.0, 1.0 / costs.of_step(num_seqs, 0)
    for k in range(most + 1):
        tokens += alpha**k
        rate = tokens / costs.of_step(num_seqs, k)
        if rate > found:
            best, found = k, rate
    return best if found >= WORTH * plain else 0
