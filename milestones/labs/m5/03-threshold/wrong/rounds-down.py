def half(num_tokens: int) -> int:
    return num_tokens // 2
