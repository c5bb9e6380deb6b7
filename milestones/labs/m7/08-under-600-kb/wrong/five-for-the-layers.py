def choose(name: str, out: int, size: int) -> tuple[int, int]:
    return (3, 64) if name.startswith("embed") else (5, 64)
