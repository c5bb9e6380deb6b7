def choose(name: str, out: int, size: int) -> tuple[int, int]:
    return 3, 128
