def batches(lengths: list[int]) -> list[list[int]]:
    made: list[list[int]] = []
    for number, length in enumerate(lengths):
        if made and (len(made[-1]) + 1) * max(length, *(lengths[other] for other in made[-1])) <= ROOM:
            made[-1].append(number)
        else:
            made.append([number])
    return made
