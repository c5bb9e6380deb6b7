"""Your own choice of CUDA graphs. The course's judge pads the steps of another day by it, and measures."""

from collections import Counter


def choose_sizes(seen: list[int], most: int, largest: int) -> list[int]:
    """At most `most` batch sizes to record, `largest` among them. seen: the batch sizes of a day's steps."""
    count = Counter(seen)
    ends = sorted({*count, largest})
    best: dict[int, tuple[int, list[int]]] = {0: (0, [])}  # up to this size: (rows, sizes)
    answers = []
    for _ in range(most):
        longer = {}
        for end in ends:
            ways = []
            for start, (rows, sizes) in best.items():
                if start < end:
                    steps = sum(count[size] for size in ends if start < size <= end)
                    ways.append((rows + end * steps, [*sizes, end]))
            if ways:
                longer[end] = min(ways)
        best = longer
        answers += [best[largest]] if largest in best else []
    return min(answers)[1]
