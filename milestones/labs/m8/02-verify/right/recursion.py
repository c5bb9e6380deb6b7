def verify(drafts: list[list[int]], draw: Draw) -> list[list[int]]:
    gained: list[list[int]] = [[] for _ in drafts]

    def go_on(places: list[int], position: int) -> None:
        if not places:
            return
        for place, token_id in zip(places, draw(places, position), strict=True):
            gained[place] += [] if token_id is None else [token_id]
        same = [place for place in places if gained[place] == drafts[place][: position + 1]]
        go_on([place for place in same if len(gained[place]) == position + 1], position + 1)

    go_on(list(range(len(drafts))), 0)
    return gained
