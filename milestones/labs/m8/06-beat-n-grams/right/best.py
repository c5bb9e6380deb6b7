def propose(tokens: list[int], count: int) -> list[int]:
    guesses: list[int] = []
    for _ in range(count):
        text, votes = tokens + guesses, {}
        for place in range(1, len(tokens)):
            size = 0
            while size < min(8, place) and tokens[place - 1 - size] == text[-1 - size]:
                size += 1
            if size:
                votes[tokens[place]] = votes.get(tokens[place], 0) + 8**size
        if not votes:
            break
        guesses.append(max(votes, key=votes.get))
    return guesses
