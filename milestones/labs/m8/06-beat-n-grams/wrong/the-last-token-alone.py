def propose(tokens: list[int], count: int) -> list[int]:
    guesses = []
    for _ in range(count):
        before = (tokens + guesses)[-1]
        followers = [tokens[at + 1] for at in range(len(tokens) - 1) if tokens[at] == before]
        if not followers:
            break
        guesses.append(max(followers, key=followers.count))
    return guesses
