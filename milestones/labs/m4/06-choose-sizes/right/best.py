def choose_sizes(seen: list[int], most: int, largest: int) -> list[int]:
    from collections import Counter

    # The next day is not this one: each size stands for its neighbours, too.
    count = Counter(max(1, min(largest, size + away)) for size in seen for away in range(-8, 9))
    ends = sorted({*count, largest})
    best = {0: (0, [])}  # what is covered -> (rows, sizes)
    answers = []
    for _ in range(most):
        best = {
            end: min(
                (rows + end * sum(count[size] for size in ends if start < size <= end), [*sizes, end])
                for start, (rows, sizes) in best.items()
                if start < end
            )
            for end in ends
            if min(best) < end
        }
        answers += [best[largest]] if largest in best else []
    return min(answers)[1]
