def verify(drafts: list[list[int]], draw: Draw) -> list[list[int]]:
    gained: list[list[int]] = [[] for _ in drafts]
    done: set[int] = set()
    for position in range(max(map(len, drafts), default=-1) + 1):
        places = [place for place, draft in enumerate(drafts) if position <= len(draft)]
        for place, token_id in zip(places, draw(places, position), strict=True):
            if place in done or token_id is None:
                done.add(place)
                continue
            gained[place].append(token_id)
            if position >= len(drafts[place]) or drafts[place][position] != token_id:
                done.add(place)
    return gained
