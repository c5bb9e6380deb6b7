def reserve(running: list[tuple[int, int]]) -> int:
    pass
