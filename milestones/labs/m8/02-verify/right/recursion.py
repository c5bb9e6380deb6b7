def verify(drafts: list[list[int]], draw: Draw) -> list[list[int]]:
    gained: list[list[int]] = [[] for _ in drafts]

    def go_on(indices: list[int], position: int) -> None:
        if not indices:
            return
        for index, token_id in zip(indices, draw(indices, position), strict=True):
            gained[index] += [] if token_id is None else [token_id]
        same = [index for index in indices if gained[index] == drafts[index][: position + 1]]
        go_on([index for index in same if len(gained[index]) == position + 1], position + 1)

    go_on(list(range(len(drafts))), 0)
    return gained
