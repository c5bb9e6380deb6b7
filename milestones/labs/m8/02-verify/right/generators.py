def verify(drafts: list[list[int]], draw: Draw) -> list[list[int]]:
    gained: list[list[int]] = [[] for _ in drafts]

    def run(index: int):
        for guess in [*drafts[index], None]:
            token_id = yield
            if token_id is not None:
                gained[index].append(token_id)
            if guess is None or token_id != guess:
                return

    runs = {index: run(index) for index in range(len(drafts))}
    for each in runs.values():
        next(each)
    position = 0
    while runs:
        tokens = draw(list(runs), position)
        for index, token_id in zip(list(runs), tokens, strict=True):
            try:
                runs[index].send(token_id)
            except StopIteration:
                del runs[index]
        position += 1
    return gained
