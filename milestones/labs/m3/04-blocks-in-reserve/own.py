"""Your own reserve. The course's judge lets the scheduler admit requests by it, and measures."""


def reserve(running: list[tuple[int, int]]) -> int:
    """How many blocks an admission must leave free. running: (prompt tokens, output tokens so far) of each sequence."""
    return 3 * len(running)
