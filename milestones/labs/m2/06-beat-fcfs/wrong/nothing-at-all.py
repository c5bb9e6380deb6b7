def key(arrival: float, num_tokens: int) -> float:
    pass
