def batches(lengths: list[int]) -> list[list[int]]:
    """The least that there is: in some best solution the batches are pieces of the sorted row."""
    row = sorted(range(len(lengths)), key=lengths.__getitem__)
    best: list[tuple[float, list[list[int]]]] = [(0, [])]
    for end in range(1, len(row) + 1):
        longest = lengths[row[end - 1]]
        best.append(
            min(
                (best[start][0] + CALL + ROW * (end - start) * longest, [*best[start][1], row[start:end]])
                for start in range(end)
                if (end - start) * longest <= ROOM
            )
        )
    return best[-1][1]
