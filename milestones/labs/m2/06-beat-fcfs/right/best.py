def key(arrival: float, num_tokens: int) -> float:
    return arrival + (700 + 0.2 * num_tokens if num_tokens > 100 else 2 * num_tokens)
