"""Your own draft. The course's judge lets it guess at three texts, and measures."""

from collections import Counter


def propose(tokens: list[int], count: int) -> list[int]:
    """At most `count` tokens that may follow `tokens`."""
    guesses: list[int] = []
    for _ in range(count):
        votes = _followers(tokens, [*tokens, *guesses], longest=6)
        if not votes:
            break
        guesses.append(votes.most_common(1)[0][0])
    return guesses


def _followers(tokens: list[int], text: list[int], longest: int) -> Counter[int]:
    """What followed the longest end of `text`, of at most `longest` tokens, that is in `tokens`."""
    for size in range(longest, 0, -1):
        starts = [at for at in range(len(tokens) - size) if tokens[at : at + size] == text[-size:]]
        if starts:
            return Counter(tokens[at + size] for at in starts)
    return Counter()
