def verify(drafts: list[list[int]], draw: Draw) -> list[list[int]]:
    gained: list[list[int]] = [[] for _ in drafts]
    places, position = list(range(len(drafts))), 0
    while places:
        agree = []
        for place, token_id in zip(places, draw(places, position), strict=True):
            if token_id is None:
                continue
            if position == len(drafts[place]):
                gained[place].append(token_id)
            elif drafts[place][position] == token_id:
                gained[place].append(token_id)
                agree.append(place)
        places, position = agree, position + 1
    return gained
