def reserve(running: list[tuple[int, int]]) -> int:
    kept = sum(3.2 if output < 20 else 0.3 + 0.21 * (120 - output) / 4 for _, output in running)
    return max(0, int(kept + 4))
