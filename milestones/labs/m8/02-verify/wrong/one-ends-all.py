def verify(drafts: list[list[int]], draw: Draw) -> list[list[int]]:
    gained: list[list[int]] = [[] for _ in drafts]
    places, position = list(range(len(drafts))), 0
    while places:
        for place, token_id in zip(places, draw(places, position), strict=True):
            if token_id is not None:
                gained[place].append(token_id)
        if any(drafts[place][position : position + 1] != gained[place][position:] for place in places):
            break
        position += 1
    return gained
