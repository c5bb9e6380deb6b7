def propose(tokens: list[int], count: int) -> list[int]:
    return []
