def share_of(tensor: str, size: int, mine: range, count: int) -> slice:
    if mine.start * size % count:
        raise ValueError(f"{tensor} cannot be cut at {mine.start} of {count}")
    return slice(mine.start * size // count, mine.stop * size // count)
