def token_budget(num_decodes: int, context: int) -> int:
    return 512
