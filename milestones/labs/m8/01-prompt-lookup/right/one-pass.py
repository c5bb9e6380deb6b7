def find_continuation(token_ids: list[int], shortest: int, longest: int, count: int) -> list[int]:
    best = (0, 0)
    for end in range(1, len(token_ids)):
        size = 0
        while size < min(end, longest) and token_ids[end - 1 - size] == token_ids[-1 - size]:
            size += 1
        best = max(best, (size, end))
    size, end = best
    return token_ids[end:][:count] if size >= shortest else []
