def choose(name: str, out: int, size: int) -> tuple[int, int]:
    return (2, 128) if name.startswith("embed") else (4, 64)
