def share_of(tensor: str, size: int, mine: range, count: int) -> slice:
    start, stop = mine.start * size / count, mine.stop * size / count
    if start != int(start) or stop != int(stop):
        raise ValueError(f"{tensor} cannot be cut")
    return slice(start, stop)
