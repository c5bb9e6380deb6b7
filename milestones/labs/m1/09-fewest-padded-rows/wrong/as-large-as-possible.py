def batches(lengths: list[int]) -> list[list[int]]:
    made: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if made and (len(made[-1]) + 1) * lengths[number] <= ROOM:
            made[-1].append(number)
        else:
            made.append([number])
    return made
