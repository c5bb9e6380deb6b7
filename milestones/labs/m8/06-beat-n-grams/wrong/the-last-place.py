def propose(tokens: list[int], count: int) -> list[int]:
    for size in range(8, 0, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[-size:]:
                return tokens[start + size : start + size + count]
    return []
