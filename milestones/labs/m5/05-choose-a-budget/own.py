"""Your own budget of a step. The course's judge lets the scheduler serve a load with it, and measures."""


def token_budget(num_decodes: int, context: int) -> int:
    """How many tokens the next step may compute, while `num_decodes` sequences decode. context: the tokens that all
    running sequences have in the cache."""
    return int((25 - 4.5 - 34.3e-6 * context) / 19.9e-3)
