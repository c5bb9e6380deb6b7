def token_budget(num_decodes: int, context: int) -> int:
    return 8192
