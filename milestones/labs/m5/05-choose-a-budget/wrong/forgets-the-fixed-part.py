def token_budget(num_decodes: int, context: int) -> int:
    return int(25 / 0.0199)
