def token_budget(num_decodes: int, context: int) -> int:
    if num_decodes <= 8:
        return 4200
    return int((24.99 - 4.5 - 34.3e-6 * context) / 19.9e-3)
