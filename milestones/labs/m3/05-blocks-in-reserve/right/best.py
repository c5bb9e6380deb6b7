def reserve(running: list[tuple[int, int]]) -> int:
    kept = sum(3 if output < 20 else 1 + 0.0525 * (120 - output) for _, output in running)
    return int(kept + 4)
