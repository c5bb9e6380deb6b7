def verify(drafts: list[list[int]], draw: Draw) -> list[list[int]]:
    gained: list[list[int]] = [[] for _ in drafts]
    indices, position = list(range(len(drafts))), 0
    while indices:
        for index, token_id in zip(indices, draw(indices, position), strict=True):
            if token_id is not None:
                gained[index].append(token_id)
        if any(drafts[index][position : position + 1] != gained[index][position:] for index in indices):
            break
        position += 1
    return gained
