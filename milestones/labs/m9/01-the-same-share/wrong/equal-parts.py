def share_of(tensor: str, size: int, mine: range, count: int) -> slice:
    if mine.start * size % count or mine.stop * size % count:
        raise ValueError(f"{tensor} cannot be cut")
    each = len(mine) * size // count
    return slice(mine.start // len(mine) * each, mine.start // len(mine) * each + each)
