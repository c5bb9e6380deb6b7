def find_continuation(token_ids: list[int], shortest: int, longest: int, count: int) -> list[int]:
    for size in range(longest, shortest - 1, -1):
        tail = token_ids[-size:]
        for start in range(len(token_ids) - size):
            if token_ids[start : start + size] == tail:
                return token_ids[start + size : start + size + count]
    return []
