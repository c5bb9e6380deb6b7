def share_of(tensor: str, size: int, mine: range, count: int) -> slice:
    if len(mine) * size % count:
        raise ValueError(f"{tensor} cannot be cut")
    start = mine.start * size // count
    return slice(start, start + len(mine) * size // count)
