def verify(drafts: list[list[int]], draw: Draw) -> list[list[int]]:
    gained: list[list[int]] = [[] for _ in drafts]
    indices, position = list(range(len(drafts))), 0
    while indices:
        agree = []
        for index, token_id in zip(indices, draw(indices, position), strict=True):
            if not token_id:
                continue
            gained[index].append(token_id)
            if position < len(drafts[index]) and drafts[index][position] == token_id:
                agree.append(index)
        indices, position = agree, position + 1
    return gained
