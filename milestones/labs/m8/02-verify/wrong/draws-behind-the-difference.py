def verify(drafts: list[list[int]], draw: Draw) -> list[list[int]]:
    gained: list[list[int]] = [[] for _ in drafts]
    done: set[int] = set()
    for position in range(max(map(len, drafts), default=-1) + 1):
        indices = [index for index, draft in enumerate(drafts) if position <= len(draft)]
        for index, token_id in zip(indices, draw(indices, position), strict=True):
            if index in done or token_id is None:
                done.add(index)
                continue
            gained[index].append(token_id)
            if position >= len(drafts[index]) or drafts[index][position] != token_id:
                done.add(index)
    return gained
