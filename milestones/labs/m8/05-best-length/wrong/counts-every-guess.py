def expected_tokens(alpha: float, k: int) -> float:
    return 1 + alpha * k
