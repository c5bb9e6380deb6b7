"""Your own policy for the waiting line. The course's judge lets the scheduler serve a load by it, and measures."""


def key(arrival: float, num_tokens: int) -> float:
    """The place of a request in the line, the smallest first. arrival: ms; num_tokens: of its prompt."""
    return arrival + 1.3 * num_tokens
