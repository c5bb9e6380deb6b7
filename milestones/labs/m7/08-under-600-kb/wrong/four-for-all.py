def choose(name: str, out: int, size: int) -> tuple[int, int]:
    return 4, 128
