def choose_sizes(seen: list[int], most: int, largest: int) -> list[int]:
    ranked = sorted(seen)
    return [ranked[len(ranked) * n // most - 1] for n in range(1, most + 1)]
