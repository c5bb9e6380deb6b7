def key(arrival: float, num_tokens: int) -> float:
    return num_tokens
