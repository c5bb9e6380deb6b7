def share_of(tensor: str, size: int, mine: range, count: int) -> slice:
    from fractions import Fraction

    ends = [Fraction(size, count) * at for at in (mine.start, mine.stop)]
    if any(end.denominator != 1 for end in ends):
        raise ValueError(f"{tensor}: cannot be cut at {ends}")
    return slice(*map(int, ends))
