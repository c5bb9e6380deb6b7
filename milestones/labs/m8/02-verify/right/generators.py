def verify(drafts: list[list[int]], draw: Draw) -> list[list[int]]:
    gained: list[list[int]] = [[] for _ in drafts]

    def run(place: int):
        for guess in [*drafts[place], None]:
            token_id = yield
            if token_id is not None:
                gained[place].append(token_id)
            if guess is None or token_id != guess:
                return

    runs = {place: run(place) for place in range(len(drafts))}
    for each in runs.values():
        next(each)
    position = 0
    while runs:
        tokens = draw(list(runs), position)
        for place, token_id in zip(list(runs), tokens, strict=True):
            try:
                runs[place].send(token_id)
            except StopIteration:
                del runs[place]
        position += 1
    return gained
