"""Your own batches of padded prompts. The course's judge counts what they cost."""

ROOM = 4096  # rows of a batch, at most
CALL = 20  # ms that a batch costs, however small it is
ROW = 0.1  # ms for each of its rows


def batches(lengths: list[int]) -> list[list[int]]:
    """Prompts of these lengths in tokens, by their numbers, in batches. Each is padded to its longest prompt."""
    made: list[list[int]] = []
    padding = 0  # of the last batch, in rows
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        longest = lengths[made[-1][0]] if made else 0
        padding += longest - lengths[number]
        if made and (len(made[-1]) + 1) * longest <= ROOM and padding * ROW <= CALL:
            made[-1].append(number)
        else:
            made.append([number])
            padding = 0
    return made
