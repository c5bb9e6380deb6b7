def verify(drafts: list[list[int]], draw: Draw) -> list[list[int]]:
    gained: list[list[int]] = [[] for _ in drafts]
    indices, position = list(range(len(drafts))), 0
    while indices:
        agree = []
        for index, token_id in zip(indices, draw(indices, position), strict=True):
            if token_id is None:
                continue
            draft = drafts[index]
            gained[index].append(draft[position] if position < len(draft) else token_id)
            if position < len(draft) and draft[position] == token_id:
                agree.append(index)
        indices, position = agree, position + 1
    return gained
