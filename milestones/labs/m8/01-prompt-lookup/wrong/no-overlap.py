def find_continuation(token_ids: list[int], shortest: int, longest: int, count: int) -> list[int]:
    for size in range(min(longest, len(token_ids) - 1), shortest - 1, -1):
        tail = token_ids[-size:]
        for end in range(len(token_ids) - size, size - 1, -1):
            if token_ids[end - size : end] == tail:
                return token_ids[end : end + count]
    return []
